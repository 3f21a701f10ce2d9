"""The audit of whole tables: the planted faults, every kind of source, and everything that is bad."""

from __future__ import annotations

import decimal
import json
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.audit.audit import audit
from lightning_mp.data.audit.codes import CODES
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError, DataError


def codes(report, column: str) -> set[str]:
    return {found.code for found in report.column(column).findings}


def test_the_ties_of_float16_are_counted_as_the_case_says(shared):
    s = audit(shared / "cases" / "float16_edges.parquet").column("edge").statistics
    half = s.formats["float16"]
    assert (half.overflowed, half.flushed, half.subnormal) == (3, 2, 3)
    assert (s.nans, s.infinities, s.rows, s.zeros) == (1, 2, 21, 2)


def test_every_planted_fault_is_found_with_its_code(shared):
    report = audit(shared / "cases" / "audit_planted.parquet")
    wanted = {
        "age": {"MP010", "MP011"},
        "spend": {"MP001", "MP004"},
        "burst": {"MP001", "MP006"},
        "dwell_share": {"MP002", "MP003"},
        "constant": {"MP012"},
        "all_null": {"MP013"},
        "id_in_float": {"MP009", "MP026"},
        "text_number": {"MP022"},
    }
    for column, expected in wanted.items():
        assert expected <= codes(report, column), column
    assert codes(report, "narrow") == codes(report, "flag") == set()
    assert report.column("narrow").advice.stored == "float16"
    assert report.column("narrow").score == report.column("flag").score == 100.0
    assert report.column("id_in_float").advice.stored == "int32"
    kinds = {name: report.column(name).advice.transform.kind for name in ("spend", "burst", "dwell_share")}
    assert kinds == {"spend": "log1p_zscore", "burst": "log1p_flag", "dwell_share": "power_of_two"}
    assert report.score < 50
    assert report.advised_score > 95


def test_hostile_names_are_shown_as_text_and_touch_nothing(shared, tmp_path):
    report = audit(shared / "cases" / "hostile_columns.parquet")
    assert {"<script>alert(1)</script>", "", "na\nme", "../../etc/passwd"} <= {c.name for c in report.columns}
    html = report.to_html()
    assert "<script" not in html
    assert "na\\nme" in html
    assert "(empty)" in html
    assert list(tmp_path.iterdir()) == []


def test_any_source_of_the_same_rows_gives_the_same_report(tmp_path):
    rng = np.random.default_rng()
    table = pa.table({"spend": rng.lognormal(3, 3, 5000), "clicks": rng.poisson(3, 5000).astype(np.float64),
                      "word": pa.array([f"w{i % 7}" for i in range(5000)])})  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    pa.feather.write_feather(table, tmp_path / "t.arrow", compression="uncompressed", chunksize=700)
    lines = [
        ",".join(table.column_names),
        *(f"{a!r},{b!r},{c}" for a, b, c in zip(*table.to_pydict().values(), strict=True)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=333))
    sources = [table, tmp_path / "t.parquet", str(tmp_path / "t.arrow"), tmp_path / "t.csv", reader]
    reports = [audit(source).to_dict() for source in sources]
    for other in reports[1:]:
        for mine, theirs in zip(reports[0]["columns"], other["columns"], strict=True):
            for key in set(mine) - {"type"}:
                if key == "statistics":
                    assert theirs[key].pop("mean") == pytest.approx(mine[key]["mean"])
                    assert theirs[key].pop("std") == pytest.approx(mine[key]["std"])
                    approx = ("formats", "spread")
                    same = {k: v for k, v in mine[key].items() if k not in ("mean", "std", *approx)}
                    assert {k: v for k, v in theirs[key].items() if k not in approx} == same
                elif key == "findings":
                    assert [f["problem"] for f in mine[key]] == [f["problem"] for f in theirs[key]]
                elif key not in ("advice", "score", "factors"):
                    assert mine[key] == theirs[key], key


def test_a_store_is_read_in_its_stored_types_split_by_split(tmp_path):
    rng = np.random.default_rng()
    store = FeatureStore(tmp_path / "store", dtype_mapping={"half": "float16", "single": "float32"})
    parts = {
        "train": pa.table({"half": rng.normal(size=2000), "single": rng.normal(size=2000)}),
        "test": pa.table({"half": rng.normal(3, 1, 500), "single": rng.normal(size=500)}),
    }
    from lightning_mp.schema import Feature, FeatureSchema

    features = tuple(
        Feature(name=name, kind="numeric", role="item", source_dtype="double", stored_dtype=kind, missing="refuse")
        for name, kind in (("half", "float16"), ("single", "float32"))
    )
    store.write(parts, schema=FeatureSchema(features=features))
    report = audit(tmp_path / "store")
    assert report.rows == 2500
    half = report.column("half").statistics
    assert half.formats["float16"].exact_share == 1.0
    assert half.drift > 1.0
    assert report.column("single").statistics.drift < 0.1
    assert "MP019" in codes(report, "half")


def test_a_leak_and_a_disguised_target_are_told_from_a_good_feature():
    rng = np.random.default_rng(0)
    label = rng.random(20_000) < 0.1
    table = pa.table({
        "click": label,
        "depth": np.where(label, 3.0, 0.0) + rng.random(20_000),
        "rate": np.where(label, 2.5, 0.0) + rng.normal(size=20_000),
        "fair": label * 0.3 + rng.normal(size=20_000),
        "kind": np.where(label, "bought", "seen"),
    })  # fmt: skip
    report = audit(table, label="click")
    assert [column.name for column in report.columns] == ["depth", "rate", "fair", "kind"]
    assert "MP021" in codes(report, "depth")
    assert "MP020" in codes(report, "rate")
    assert not {"MP020", "MP021"} & codes(report, "fair")
    assert "MP021" in codes(report, "kind")
    assert 0.5 < report.column("fair").statistics.auc < 0.65


def test_what_changes_over_time_is_found_whatever_the_order_of_the_rows():
    rng = np.random.default_rng(0)
    rows = 8000
    moment = np.arange(rows) * 1_000_000 + 1_600_000_000_000_000
    late = np.arange(rows) > rows * 0.7
    brand = np.where(late & (rng.random(rows) < 0.5), None, "b")
    table = pa.table({"at": pa.array(moment).cast(pa.timestamp("us", "UTC")), "moved": rng.normal(size=rows) + 2 * late,
                      "still": rng.normal(size=rows), "brand": pa.array(brand.tolist())})  # fmt: skip
    ordered = audit(table, time="at")
    mixed = audit(table.take(pa.array(rng.permutation(rows))), time="at")
    for report in (ordered, mixed):
        assert "MP019" in codes(report, "moved")
        assert "MP019" not in codes(report, "still")
        assert "MP015" in codes(report, "brand")
    assert ordered.column("moved").statistics.drift == mixed.column("moved").statistics.drift


def test_columns_that_hold_the_same_are_found_over_groups_of_columns():
    rng = np.random.default_rng()
    base = rng.normal(size=1000)
    columns = {f"c{i:03d}": rng.normal(size=1000) for i in range(80)}
    near = base + 0.5 * rng.normal(size=1000)
    columns |= {"first": base, "again": base.copy(), "scaled": -3 * base + 1, "almost": near}
    report = audit(pa.table(columns))
    assert codes(report, "again") == {"MP017"}
    assert codes(report, "scaled") == {"MP018"}
    assert codes(report, "almost") == set()
    assert "`first`" in report.column("again").findings[0].problem


def test_types_of_every_kind_end_in_a_word_and_never_in_a_traceback(tmp_path):
    rows = 60
    table = pa.table({
        "struct": pa.array([{"a": 1}] * rows),
        "list": pa.array([[1.0, 2.0]] * rows),
        "map": pa.array([[("k", 1)]] * rows, type=pa.map_(pa.string(), pa.int64())),
        "binary": pa.array([b"x"] * rows),
        "null": pa.nulls(rows),
        "decimal": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.50")] * (rows // 2)),
        "date": pa.array([date(2024, 1, 1), date(2999, 1, 1)] * (rows // 2)),
        "epoch": pa.array([datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)] * (rows // 2)),
        "dictionary": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 2.0)), 2),
        "half": pa.array(np.arange(rows, dtype=np.float16)),
        "uint64": pa.array(np.arange(rows, dtype=np.uint64)),
        "inf": pa.array([np.inf] * rows),
        "nan": pa.array([np.nan] * rows),
        "mixed": pa.array(["1.5", "x"] + ["2.5"] * (rows - 2)),
    })  # fmt: skip
    report = audit(table)
    for name in ("struct", "list", "map", "binary"):
        assert codes(report, name) == {"MP024"}, name
    assert "MP013" in codes(report, "null") & codes(report, "nan")
    assert codes(report, "inf") == {"MP016"}
    assert report.column("decimal").statistics.mean == 1.875
    assert "MP025" in codes(report, "date")
    assert "MP011" in codes(report, "epoch")
    assert report.column("dictionary").statistics.distinct == 2
    assert report.column("embedding").statistics.finite == 2 * rows
    assert "MP023" in codes(report, "mixed")
    assert {found.code for found in report.findings} <= set(CODES)
    report.to_json()
    report.to_html()


def test_json_lines_are_audited_as_the_same_rows_in_csv(tmp_path):
    draw = np.random.default_rng()
    rows = [{"price": float(draw.lognormal(3, 3)), "kind": str(draw.choice(["a", "b"]))} for _ in range(300)]
    (tmp_path / "t.csv").write_text("price,kind\n" + "".join(f"{row['price']!r},{row['kind']}\n" for row in rows))
    lines = [json.dumps({"kind": row["kind"], "item": {"price": row["price"]}}) for row in rows]
    (tmp_path / "t.jsonl").write_text("\n".join([*lines, "[1]", ""]))
    of_csv, of_lines = audit(tmp_path / "t.csv"), audit(tmp_path / "t.jsonl")
    assert of_lines.column("item.price").statistics == of_csv.column("price").statistics
    assert of_lines.column("kind").score == of_csv.column("kind").score
    assert of_lines.notes == ("1 of 301 rows were rejected: 1 is no JSON object",)
    with_comma = audit(tmp_path / "t.jsonl", csv=CsvDialect(decimal=","))
    assert with_comma.column("item.price").statistics == of_csv.column("price").statistics, "JSON has one decimal mark"


def test_a_csv_column_of_numbers_counts_what_is_none(tmp_path):
    (tmp_path / "t.csv").write_text("price,when,user_id\n" + "1.5,2024-01-01T00:00:00Z,007\n" * 30 + "abc,nonsense,7\n")
    report = audit(tmp_path / "t.csv")
    assert report.column("price").audited_as == "number"
    assert report.column("price").statistics.missing == 1
    problems = {found.code: found.problem for found in report.column("price").findings}
    assert problems["MP023"] == "1 texts in a column of numbers are none: `abc`"
    assert report.column("when").audited_as == "time"
    assert report.column("user_id").audited_as == "text"
    assert report.column("user_id").statistics.distinct == 2
    comma = tmp_path / "comma.csv"
    comma.write_text("x;y\n1,5;2\n2,5;3\n")
    assert audit(comma, csv=CsvDialect(delimiter=";", decimal=",")).column("x").statistics.mean == 2.0


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (pa.table({}), DataError, "no columns"),
        (pa.table({"x": pa.array([], type=pa.float64())}), DataError, "no row"),
        (42, ConfigurationError, "cannot read a `int`"),
        ("missing.parquet", DataError, "does not exist"),
    ],
)
def test_nothing_to_read_is_one_clear_error(source, error, words):
    with pytest.raises(error, match=words):
        audit(source)


def test_settings_that_cannot_work_are_named():
    table = pa.table({"click": [0.0, 1.0], "word": ["a", "b"]})
    with pytest.raises(ConfigurationError, match="did you mean `click`"):
        audit(table, label="clik")
    with pytest.raises(ConfigurationError, match="holds string, which is neither"):
        audit(table, label="word")
    with pytest.raises(ConfigurationError, match="`policy` must be"):
        audit(table, policy="fp8")
    with pytest.raises(ConfigurationError, match="has 2 columns `a`"):
        audit(pa.table([[1.0], [2.0]], names=["a", "a"]), label="a")
    with pytest.raises(DataError, match="holds no time"):
        audit(table, time="word")


def test_a_file_cut_short_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": np.arange(1000.0)}), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        audit(path)


def test_many_columns_are_read_group_by_group(tmp_path):
    rng = np.random.default_rng()
    path = tmp_path / "wide.parquet"
    columns = {f"c.{i}" if i % 2 else f"c{i}": rng.normal(size=4).astype(np.float32) for i in range(300)}
    pq.write_table(pa.table(columns), path)
    told: list[float] = []
    report = audit(path, progress=told.append)
    assert len(report.columns) == 300
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(report.to_html()) < 4_000_000


def test_the_policy_decides_the_score():
    table = pa.table({"large": np.random.default_rng(0).uniform(7e4, 9e4, 1000)})
    assert audit(table, policy="fp16").column("large").score == 0.0
    assert audit(table, policy="bf16").column("large").score > 50.0


def test_two_columns_of_one_name_both_appear(tmp_path):
    table = pa.table([[1.0, 2.0], [70000.0, 1.0]], names=["a", "a"])
    path = Path(tmp_path / "t.parquet")
    pq.write_table(table, path)
    report = audit(path)
    assert [column.statistics.maximum for column in report.columns] == [2.0, 70000.0]


def test_numbers_beyond_float32_and_hashes_of_64_bits_are_told_and_no_traceback():
    draw = np.random.default_rng()
    columns = {
        "one": np.full(50, 1e300),
        "both": np.repeat([-1.797e308, 1.797e308], 25),
        "whole": draw.choice([-1e39, 1e39, 3e40], 50),
        "spread": draw.uniform(1e200, 1e201, 50),
        "hash": draw.integers(2**63, 2**64 - 1, 50, dtype=np.uint64),
        "most": np.full(50, 2**64 - 1, dtype=np.uint64),
    }
    report = audit(pa.table(columns))
    assert report.to_html()
    told = {name: {f.code for f in report.findings if f.column == name} for name in columns}
    assert told["one"] == told["most"] == {"MP012"}
    assert "MP009" in told["hash"]
    for name in ("both", "whole", "spread"):
        assert "MP001" in told[name], name
