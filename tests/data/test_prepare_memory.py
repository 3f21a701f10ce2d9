"""Private memory that `prepare` takes: bounded, while the log grows."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_mp.data import scratch_array, table_spool
from lightning_mp.data.columns import Columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel, PreferenceLabel
from lightning_mp.data.prepare import prepare
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.errors import ArtifactError

USERS, ITEMS = 5000, 900
FEATURES = [
    FeatureSpec(name="user", kind="id", role="user"),
    FeatureSpec(name="item", kind="id", role="item"),
    FeatureSpec(name="brand", kind="categorical", role="item", missing="mode", missing_by=("shelf",), indicator=True),
    FeatureSpec(name="words", kind="multi_categorical", role="item", separator="|"),
    FeatureSpec(name="hour", kind="categorical", of="hour"),
    FeatureSpec(name="price", kind="numeric", role="item", transform="robust_clip", missing="median"),
    FeatureSpec(name="before", kind="sequence", role="user", length=5, history={"of": "view", "by": ["user"]}),
]


def write(path, rows):
    draw = np.random.default_rng()
    brands = pa.array([None, *(f"brand{place}" for place in range(40))])
    table = pa.table({
        "user": draw.integers(0, USERS, rows),
        "item": pa.array([f"i{place}" for place in range(ITEMS)]).take(pa.array(draw.integers(0, ITEMS, rows))),
        "time": 1_700_000_000 + np.sort(draw.integers(0, 90 * 86_400, rows)),
        "kind": pa.array(["view", "order"]).take(pa.array((draw.random(rows) < 0.1).astype(int))),
        "brand": brands.take(pa.array(draw.integers(0, 41, rows))),
        "shelf": pa.array(["a.b", "a.c", "d"]).take(pa.array(draw.integers(0, 3, rows))),
        "words": pa.array(["x|y", "y", None]).take(pa.array(draw.integers(0, 3, rows))),
        "price": pa.array(draw.lognormal(3, 1, rows), mask=draw.random(rows) < 0.1),
    })  # fmt: skip
    parquet.write_table(table, path, row_group_size=50_000)


def private_bytes(log, store, label):
    """The most that Python, NumPy and Arrow held at once until the store was written; what is mapped is not theirs."""
    ordinary, seen = pa.default_memory_pool(), []
    pool = pa.proxy_memory_pool(ordinary)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        prepare(log, store, columns=Columns(user="user", item="item", time="time", event="kind"), label=label,
                features=FEATURES, memory_limit="64MiB", split=TimeSplit(embargo="0s"),
                progress=lambda _: seen.append(tracemalloc.get_traced_memory()[1] + pool.max_memory()))  # fmt: skip
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(ordinary)
    return seen[-2]  # the writer, before the last line, has a limit of its own


@pytest.mark.parametrize(
    "label", [EventLabel(event="order", within="60d"), PreferenceLabel()], ids=["event", "preference"]
)
def test_four_times_the_rows_take_less_than_twice_the_memory(tmp_path, monkeypatch, label):
    # As if the log were large: what exceeds a megabyte goes to disk.
    monkeypatch.setattr(scratch_array, "IN_MEMORY", 1 << 20)
    monkeypatch.setattr(table_spool, "IN_MEMORY", 1 << 20)
    taken = []
    for rows in (150_000, 600_000):
        write(tmp_path / "log.parquet", rows)
        taken.append(private_bytes(tmp_path / "log.parquet", tmp_path / f"store{rows}", label))
    assert taken[1] < 2 * taken[0], taken


def test_a_large_column_lies_on_disk_and_is_an_ordinary_array():
    rows = scratch_array.IN_MEMORY // 8
    small, large = scratch_array.scratch_array(rows, np.int64), scratch_array.scratch_array((rows + 1, 1), np.int64)
    values = np.random.default_rng().integers(-(2**62), 2**62, rows + 1)
    large[:, 0] = values
    assert type(large) is type(small) is np.ndarray
    assert large.flags.writeable
    assert np.array_equal(large.ravel(), values)


def spooled(rows):
    spool = table_spool.TableSpool()
    for start in range(0, rows, 100_000):
        spool.add(pa.table({"a": np.arange(start, start + 100_000)}))
    return spool


def test_tables_beyond_a_size_come_back_from_disk(monkeypatch):
    monkeypatch.setattr(table_spool, "IN_MEMORY", 1 << 20)
    spool = spooled(500_000)
    assert spool.on_disk
    assert np.array_equal(spool.table()["a"].to_numpy(), np.arange(500_000))


def test_a_full_disk_is_an_error_that_says_where(monkeypatch):
    monkeypatch.setattr(table_spool, "IN_MEMORY", 1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ArtifactError, match="for 8 MB of a log's columns") as caught:
            scratch_array.scratch_array(scratch_array.IN_MEMORY + 1, np.int8)
        with pytest.raises(ArtifactError, match="for the columns of a log"):
            spooled(500_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "TMPDIR" in caught.value.hint


def test_nothing_stays_of_a_process_that_was_killed(tmp_path):
    script = """
import os, signal
import numpy as np, pyarrow as pa
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.table_spool import TableSpool
kept = scratch_array(3_000_000, np.int64)
kept.fill(1)
spool = TableSpool()
spool.add(pa.table({"a": np.arange(10_000_000)}))
assert spool.on_disk
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
