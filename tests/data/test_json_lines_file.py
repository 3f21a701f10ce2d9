"""JSON lines: nested fields, lists, bad lines, cut at any byte, numbers to the last digit."""

from __future__ import annotations

import json

import pytest

from lightning_mp.data.columns import Columns
from lightning_mp.data.events import read_events
from lightning_mp.data.json_lines_file import JsonLinesFile
from lightning_mp.data.rejects import Rejects
from lightning_mp.errors import DataError

OTTO = Columns(user="session", item="events.aid", time="events.ts", event="events.type")
KINDS = {"clicks": "click", "carts": "cart", "orders": "order"}


def written(path, lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def read(path, names, **settings):
    rejects = Rejects()
    source = JsonLinesFile(path, "utf-8", rejects, **settings)
    rows, places = [], []
    for block in source.blocks(names):
        rows += list(zip(*(block.columns[name].to_pylist() for name in names), strict=True))
        places += block.lines.tolist()
    return source, rows, places, rejects


def test_nested_fields_and_a_list_of_objects(tmp_path):
    events = [
        {"aid": 1, "ts": 1_661_724_000_278, "type": "clicks"},
        {"aid": 2, "ts": 1_661_724_000_378, "type": "carts"},
    ]
    lines = [{"session": 1, "events": events}, {"session": 2, "events": []}, {"session": 3, "events": events[:1]}]
    log = read_events(written(tmp_path / "log.jsonl", lines), columns=OTTO, event_map=KINDS)
    assert log.table["user"].to_pylist() == ["1", "1", "3"]
    assert log.table["item"].to_pylist() == ["1", "2", "1"]
    assert log.table["row"].to_pylist() == [0, 1, 2]
    assert log.table["time"].to_pylist() == [1_661_724_000_278_000, 1_661_724_000_378_000, 1_661_724_000_278_000]
    assert log.counts == {"click": 2, "cart": 1}


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_values_are_text_as_they_are_written_wherever_chunks_end(tmp_path, chunk):
    lines = ['{"a": 9007199254740993, "b": {"c": 0.10}, "d": "é"}', '{"a": null, "b": {"c": true}}', "", '{"d": "x"}']
    path = written(tmp_path / "a.jsonl", lines)
    if chunk == 1:
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    _, rows, places, rejects = read(path, ["a", "b.c", "d"], chunk_bytes=chunk)
    assert rows == [("9007199254740993", "0.10", "é"), ("", "true", ""), ("", "", "x")]
    assert places == [1, 2, 4]
    assert rejects.total == 0


def test_bad_lines_are_named(tmp_path):
    lines = ['{"a": 1}', '{"a": ', "[1]", '"text"', '{"a": [1, 2]}', '{"a": 2}', "[" * 100_000, '{"a": 3']
    _, rows, _, rejects = read(written(tmp_path / "a.jsonl", lines), ["a"])
    assert rows == [("1",), ("2",)]
    assert [(entry["line"], entry["column"]) for entry in rejects.table().to_pylist()] == [
        (2, ""), (3, ""), (4, ""), (5, "a"), (7, ""), (8, ""),
    ]  # fmt: skip
    reasons = rejects.table()["reason"].to_pylist()
    assert reasons[0].startswith("is not JSON: ")
    assert reasons[1:4] == ["is no JSON object", "is no JSON object", "is a list, a value is needed"]
    assert all(reason.startswith(("is not JSON", "is nested")) for reason in reasons[4:])


def test_rejected_lines_count_against_the_share(tmp_path):
    events = [{"aid": 1, "ts": 1_661_724_000_278, "type": "clicks"}]
    path = written(tmp_path / "log.jsonl", [{"session": 1, "events": events}, '{"session": 2'])
    with pytest.raises(DataError, match=r"1 of 2 rows are bad.*line 2"):
        read_events(path, columns=OTTO, event_map=KINDS)


@pytest.mark.parametrize(
    ("text", "words"),
    [('[{"a": 1}]', "is one JSON list"), ("{}\n", "no JSON object with fields"), ("nonsense\n", "no JSON object")],
)
def test_files_that_are_no_json_lines(tmp_path, text, words):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=words):
        JsonLinesFile(tmp_path / "a.jsonl", "utf-8", Rejects())


def test_otto(shared):
    log = read_events(shared / "data" / "otto" / "otto_test_train.jsonl", columns=OTTO, event_map=KINDS)
    assert log.counts == {"click": 800, "cart": 52, "order": 10}
    assert len(set(log.table["user"].to_pylist())) == 20
