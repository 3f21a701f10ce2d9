"""The example row of a bundle: as somebody would write it, with the score of the row it was."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.bundle import SAMPLES, seal
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.prepare import prepare
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.sample_inputs import read_samples, write_samples
from lightning_mp.export.sample_row import sample_row
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.serve.scorer import Scorer

ROWS = 800


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A bundle of a log with counts, prices, gaps and letters of more than one alphabet."""
    folder, rng = tmp_path_factory.mktemp("shop"), np.random.default_rng()
    log = {
        "user": rng.integers(60, size=ROWS), "item": rng.integers(30, size=ROWS),
        "time": 1_700_000_000_000_000 + np.arange(ROWS) * 3_600_000_000, "bought": rng.random(ROWS) < 0.2,
        "room": rng.choice(["Küche", "浴室", ""], ROWS), "price": np.round(rng.lognormal(2, 1, ROWS), 2),
        "age": rng.integers(18, 80, ROWS),
    }  # fmt: skip
    pq.write_table(pa.table(log), folder / "log.parquet")
    number = {"kind": "numeric", "transform": "log1p_zscore"}
    store = prepare(
        folder / "log.parquet", folder / "store", label=EventLabel(event="order"),
        columns=Columns(user="user", item="item", time="time", event=EventFlags(flags={"order": "bought"})),
        features=[
            FeatureSpec(name="user", kind="id", role="user"), FeatureSpec(name="item", kind="id", role="item"),
            FeatureSpec(name="room", kind="categorical", missing="mode", indicator=True),
            FeatureSpec(name="price", dtype="float16", **number),
            FeatureSpec(name="age", kind="numeric", transform="zscore", dtype="float16"),
            FeatureSpec(name="own", dtype="float16", history={"of": "order", "by": ["user"]}, **number),
        ],
    )  # fmt: skip
    network = DCNv2(store.schema, embedding_dim=4, hidden=(8,)).eval()
    return export_bundle(network, folder / "bundle", store=store, precision="fp32"), log


def keep(bundle, rows):
    """The same bundle, with these of its samples."""
    columns, logit = read_samples(bundle.path / SAMPLES, bundle.manifest.inputs)
    write_samples(bundle.path / SAMPLES, {name: values[rows] for name, values in columns.items()}, logit[rows])
    seal(bundle.path, bundle.manifest)
    return type(bundle).open(bundle.path), logit[rows]


def test_it_holds_values_of_the_log_and_gets_the_score_of_its_row(shop):
    bundle, log = shop
    columns, logits = read_samples(bundle.path / SAMPLES, bundle.manifest.inputs)
    row = sample_row(bundle)
    assert {"user", "item", "age", "own", "price"} <= row.keys() <= {"user", "item", "room", "age", "own", "price"}
    assert row["age"] in log["age"].tolist()
    assert all(isinstance(row[name], int) and row[name] >= 0 for name in ("user", "item", "age", "own"))
    assert row["price"] == round(row["price"], 2)
    assert np.abs(log["price"] / row["price"] - 1).min() < 2e-3
    place = np.flatnonzero((columns["user"] == row["user"]) & (columns["item"] == row["item"]))
    assert Scorer.open(bundle.path).score([row]).logit[0] in logits[place]


def test_each_row_that_is_kept_gets_its_own_score_to_the_bit(shop, tmp_path):
    from shutil import copytree

    bundle, _ = shop
    copied = type(bundle).open(copytree(bundle.path, tmp_path / "copy"))
    columns, logits = read_samples(copied.path / SAMPLES, copied.manifest.inputs)
    for place in range(len(logits)):
        one, logit = keep(type(bundle).open(copytree(bundle.path, tmp_path / str(place))), slice(place, place + 1))
        row = sample_row(one)
        assert Scorer.open(one.path).score([row]).logit.tolist() == logit.tolist()
        gone = columns["room_missing"][place] == 1
        assert ("room_missing" in row) == (gone and "room" in row)


def test_of_rows_with_and_without_gaps_it_is_one_without(shop, tmp_path):
    from shutil import copytree

    bundle, _ = shop
    columns, _ = read_samples(bundle.path / SAMPLES, bundle.manifest.inputs)
    gaps, whole = (np.flatnonzero(columns["room_missing"] == value) for value in (1, 0))
    one, _ = keep(type(bundle).open(copytree(bundle.path, tmp_path / "b")), np.concatenate([gaps[:2], whole[:1]]))
    row = sample_row(one)
    assert row["room"] in ("Küche", "浴室")
    assert "room_missing" not in row
