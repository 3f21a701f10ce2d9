"""CSV files against the standard library's reader, in pieces of any size, sound and broken."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.csv_file import CsvFile
from lightning_mp.data.rejects import Rejects
from lightning_mp.errors import ConfigurationError, DataError

FIELD = st.text(alphabet='ab ,;"\n\r\té😀', max_size=6)
ROWS = st.lists(st.lists(FIELD, min_size=3, max_size=3), max_size=8)


def read(path, *, dialect=None, chunk_bytes=1 << 20, names=None):
    rejects = Rejects()
    file = CsvFile(path, dialect or CsvDialect(), rejects, chunk_bytes=chunk_bytes)
    rows, lines = [], []
    for block in file.blocks(file.header if names is None else names):
        rows += list(zip(*(column.to_pylist() for column in block.columns.values()), strict=True))
        lines += block.lines.tolist()
        assert block.rows.tolist() == sorted(block.rows.tolist())
    return file, [list(row) for row in rows], lines, rejects


def written(rows, end, quote_all, delimiter=","):
    out = []
    for row in rows:
        fields = []
        for index, value in enumerate(row):
            needs = any(c in value for c in f"{delimiter}\n\r") or value.startswith('"')
            needs |= quote_all or (index == 0 and not any(row))
            fields.append('"' + value.replace('"', '""') + '"' if needs else value)
        out.append(delimiter.join(fields))
    return end.join(out)


@settings(max_examples=150, deadline=None)
@given(
    rows=ROWS,
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    quote_all=st.booleans(),
    last=st.booleans(),
    chunk_bytes=st.sampled_from([1, 2, 3, 7, 64, 1 << 20]),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
def test_every_sound_file_is_read_as_it_was_written(
    tmp_path_factory, rows, end, quote_all, last, chunk_bytes, delimiter
):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    text = written([["x", "y", "z"], *rows], end, quote_all, delimiter) + (end if last else "")
    path.write_bytes(text.encode())
    file, found, lines, rejects = read(path, dialect=CsvDialect(delimiter=delimiter), chunk_bytes=chunk_bytes)
    assert file.header == ("x", "y", "z")
    assert found == rows
    assert rejects.total == 0
    oracle = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    assert found == [row for row in oracle[1:] if row]
    # A record's line: the line ends before it, counted in the text itself.
    place, expected = 0, []
    for row in [["x", "y", "z"], *rows]:
        before = text[:place]
        expected.append(
            1
            + before.count("\n")
            + sum(before[i] == "\r" and before[i + 1 : i + 2] != "\n" for i in range(len(before)))
        )
        place += len(written([row], end, quote_all, delimiter)) + len(end)
    assert lines == expected[1:]


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet='ab,"\n\r\0', max_size=40),
    chunk_bytes=st.sampled_from([1, 2, 5, 1 << 20]),
)
def test_no_text_breaks_it_and_every_line_is_told_about(tmp_path_factory, text, chunk_bytes):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(b"x,y\n" + text.encode())
    file, rows, lines, rejects = read(path, chunk_bytes=chunk_bytes)
    whole = read(path)
    assert (rows, lines, rejects.table().to_pylist()) == (whole[1], whole[2], whole[3].table().to_pylist())
    assert len(rows) + rejects.total == file.rows_seen
    told = {*lines, *rejects.table()["line"].to_pylist()}
    plain = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if '"' not in text:
        assert told == {number for number, line in enumerate(plain, start=2) if line}
        assert rows == [line.split(",") for line in plain if line.count(",") == 1 and "\0" not in line]


def test_an_open_quote_costs_one_line_and_not_the_rest_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n1,"open\n2,b\n3,c\n')
    _, rows, lines, rejects = read(path)
    assert (rows, lines) == ([["2", "b"], ["3", "c"]], [3, 4])
    assert rejects.table().to_pylist() == [
        {
            "line": 2,
            "column": "",
            "value": '1,"open',
            "reason": "has a quote that is never closed, or text behind a closing quote",
        }
    ]


def test_an_open_quote_is_given_up_after_a_mebibyte(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n1,"open\n' + "22222222,bbbbbbbb\n" * 200_000)
    file, rows, _, rejects = read(path, chunk_bytes=1 << 16)
    assert (len(rows), rejects.total, file.rows_seen) == (200_000, 1, 200_001)


def test_text_behind_a_closing_quote_is_rejected_and_a_quote_inside_a_field_is_a_sign(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x,y\n"a"b,1\n12" screen,2\n')
    _, rows, _, rejects = read(path)
    assert rows == [['12" screen', "2"]]
    assert rejects.table()["line"].to_pylist() == [2]


def test_ragged_and_control_rows_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'x,y\n1\n\n1,2,3\n"1,2",3\n"a\nb",c,d\na,b\x00c\na\x07,b\ntab\t,ok\n')
    _, rows, lines, rejects = read(path)
    assert (rows, lines) == ([["1,2", "3"], ["tab\t", "ok"]], [5, 10])
    assert [tuple(r.values()) for r in rejects.table().to_pylist()] == [
        (2, "", "1", "has 1 fields, the header has 2"),
        (4, "", "1,2,3", "has 3 fields, the header has 2"),
        (6, "", '"a\nb",c,d', "has 3 fields, the header has 2"),
        (8, "y", "b\x00c", "holds the control character U+0000"),
        (9, "x", "a\x07", "holds the control character U+0007"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 20])
def test_encodings(tmp_path, encoding, chunk_bytes):
    path = tmp_path / "a.csv"
    path.write_bytes("x,y\nHermès,😀\n".encode(encoding))
    file, rows, lines, _ = read(path, dialect=CsvDialect(encoding=encoding), chunk_bytes=chunk_bytes)
    assert (file.header, rows, lines) == (("x", "y"), [["Hermès", "😀"]], [2])


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfx,y\r\n1,2\r\n")
    assert read(path, chunk_bytes=1)[0].header == ("x", "y")


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1 << 20])
def test_wrong_encoding_names_line_byte_and_option(tmp_path, chunk_bytes):
    path = tmp_path / "a.csv"
    path.write_bytes("x,y\nok,1\ncafé,2\n".encode("latin-1"))
    with pytest.raises(DataError) as caught:
        read(path, chunk_bytes=chunk_bytes)
    assert "is not utf-8: line 3 holds the byte 0xe9" in caught.value.problem
    assert caught.value.hint == "declare its encoding, as in `csv.encoding: latin-1`"
    assert read(path, dialect=CsvDialect(encoding="latin-1"))[1][1] == ["café", "2"]


@pytest.mark.parametrize(
    ("encoding", "hint"), [("utf-16", "utf-16"), ("utf-16-le", "utf-16-le"), ("utf-16-be", "utf-16-be")]
)
def test_utf16_is_recognised(tmp_path, encoding, hint):
    path = tmp_path / "a.csv"
    path.write_bytes("x,y\n1,2\n".encode(encoding))
    with pytest.raises(DataError, match="line 1") as caught:
        read(path)
    assert caught.value.hint == f"declare it with `csv.encoding: {hint}`"


def test_some_columns_in_any_order(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y,z\n1,2,3\n")
    assert read(path, names=["z", "x"])[1] == [["3", "1"]]


def test_blank_lines_alone_are_no_header(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n\n")
    with pytest.raises(DataError, match="holds no header that can be read"):
        read(path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delimiter": ";;"}, "`csv.delimiter` must be one ASCII character, got ';;'"),
        ({"delimiter": '"'}, "are both"),
        ({"decimal": "x"}, "`csv.decimal` must be `.` or `,`, got 'x'"),
        ({"encoding": "utf-9"}, "there is no encoding 'utf-9'"),
    ],
)
def test_bad_dialects(options, text):
    with pytest.raises(ConfigurationError, match=text):
        CsvDialect(**options)


def test_a_tab_may_be_written_as_backslash_t():
    assert CsvDialect(delimiter="\\t").delimiter == "\t"
