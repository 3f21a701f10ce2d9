"""A log that changes while it is read: the store would be taken to hold rows that it does not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_mp.data import parquet_file
from lightning_mp.data.columns import Columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.prepare import prepare
from lightning_mp.errors import DataError


def write(path, rows):
    draw = np.random.default_rng()
    table = pa.table({
        "user": draw.integers(0, 5, rows), "item": draw.integers(0, 3, rows),
        "time": 1_700_000_000 + np.arange(rows) * 600, "event": ["view", "order"] * (rows // 2),
    })  # fmt: skip
    parquet.write_table(table, path, row_group_size=200)


def test_a_log_that_changes_while_it_is_read_is_refused_and_then_made_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_file, "_BATCH_ROWS", 200)
    log, told = tmp_path / "log.parquet", []
    write(log, 2000)

    def replace(line):
        if not told:
            write(tmp_path / "next.parquet", 2200)
            (tmp_path / "next.parquet").replace(log)
        told.append(line)

    settings = {
        "columns": Columns(user="user", item="item", time="time", event="event"),
        "label": EventLabel(event="order", within="1h"),
        "features": [FeatureSpec(name=name, kind="id", role=name) for name in ("user", "item")],
    }
    with pytest.raises(DataError, match=r"`.*log\.parquet` was written to while it was read"):
        prepare(log, tmp_path / "store", progress=replace, **settings)
    assert told[0].startswith("read ")
    assert not (tmp_path / "store" / "LATEST").exists()
    assert prepare(log, tmp_path / "store", **settings).manifest.source["rows"] == 2200
