"""A Parquet file read column by column: the report of reading it row by row, one clear error, an end when stopped."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.audit.audit import audit
from lightning_mp.data.audit.source import open_source
from lightning_mp.errors import DataError


def table(rows: int) -> pa.Table:
    rng = np.random.default_rng()
    columns = {f"number{i}": rng.lognormal(i, 3, rows) for i in range(5)}
    columns |= {f"count{i}": rng.poisson(3, rows).astype(np.float32) for i in range(3)}
    columns["missing"] = pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.2)
    columns["word"] = pa.array([f"w{i % 7}" for i in range(rows)])
    columns["moment"] = pa.array(np.arange(rows) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    columns["again"] = columns["number2"].copy()
    columns["pair"] = pa.array([{"one": 1.0, "other": 2.0}] * rows)
    return pa.table(columns)


def test_column_by_column_reports_what_row_by_row_does(tmp_path):
    whole = table(20_000)
    path = tmp_path / "t.parquet"
    pq.write_table(whole.drop_columns(["pair"]), path, row_group_size=3000)
    assert open_source(path).columns is not None
    alone, together = audit(path), audit(whole.drop_columns(["pair"]))
    assert [column.name for column in alone.columns] == [column.name for column in together.columns]
    assert alone.rows == together.rows == 20_000
    for mine, theirs in zip(alone.columns, together.columns, strict=True):
        assert {f.code for f in mine.findings} == {f.code for f in theirs.findings}, mine.name
        assert np.array_equal(mine.sample, theirs.sample, equal_nan=True)
        for key in ("rows", "missing", "distinct", "zeros", "quantiles", "magnitudes", "minimum", "maximum"):
            assert getattr(mine.statistics, key) == getattr(theirs.statistics, key), (mine.name, key)
        for name, loss in mine.statistics.formats.items():
            other = theirs.statistics.formats[name]
            assert (loss.exact, loss.subnormal, loss.error_p50) == (other.exact, other.subnormal, other.error_p50)
        for found, expected in ((mine.statistics.mean, theirs.statistics.mean), (mine.score, theirs.score)):
            assert found == (None if expected is None else pytest.approx(expected, rel=1e-9))


def test_a_column_of_pairs_is_read_with_all_the_others(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table(500), path)
    assert open_source(path).columns is None
    assert [f.code for f in audit(path).column("pair").findings] == ["MP024"]


def test_progress_rises_to_one_and_is_told_from_the_thread_that_asked(tmp_path):
    import threading

    path = tmp_path / "t.parquet"
    pq.write_table(table(3000).drop_columns(["pair"]), path)
    told: list[tuple[float, int]] = []
    audit(path, progress=lambda share: told.append((share, threading.get_ident())))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert {thread for _, thread in told} == {threading.get_ident()}


def test_a_page_that_is_damaged_is_one_clear_error(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table(3000).drop_columns(["pair"]), path, compression="zstd", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(3)
    data = bytearray(path.read_bytes())
    start = chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        audit(path)


def test_stopped_by_the_user_it_ends_without_the_other_columns(tmp_path, monkeypatch):
    import lightning_mp.data.audit.column_lanes as lanes

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({f"x{i}": np.random.default_rng().normal(size=200_000) for i in range(40)}), path)
    monkeypatch.setattr(lanes, "_TOLD_EVERY", 0.001)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(path, progress=stop)


@pytest.mark.parametrize("label", [None, "y"])
def test_a_row_group_that_is_the_whole_file_is_not_held_at_once(tmp_path, label):
    path, rng = tmp_path / "t.parquet", np.random.default_rng()
    columns = {name: rng.random(4_000_000, dtype=np.float32) for name in ("x", "y")}  # 16 MB each
    pq.write_table(pa.table(columns), path, row_group_size=4_000_000, use_dictionary=False, compression="none")
    code = (
        "import sys, pyarrow as pa; from lightning_mp.data.audit.audit import audit; "
        "audit(sys.argv[1], label=sys.argv[2] or None); print(pa.default_memory_pool().max_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), label or ""], capture_output=True, check=True)
    assert int(done.stdout) < 12_000_000
