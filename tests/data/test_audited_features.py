"""The audit gate in prepare: it refuses, cures, and leaves its verdict beside the schema."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data import transforms
from lightning_mp.data.audit.gate import AuditGate
from lightning_mp.data.audited_features import audited
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_columns import FeatureColumn
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.numeric_column import fit_numeric
from lightning_mp.data.prepare import prepare
from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.errors import ConfigurationError, DataError

COLUMNS = Columns(user="user_id", item="item_id", time="event_time", event=EventFlags(flags={"click": "click"}))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    faults = Faults(negative_ages=True, exploding_spend=True, sparse_bursts=True)
    settings = SyntheticLog(impressions=8000, users=300, items=100, faults=faults)
    return write_log(tmp_path_factory.mktemp("log") / "log.parquet", settings)


def features(kind: str, **age):
    numbers = [FeatureSpec(name=name, kind="numeric", transform=kind) for name in ("spend", "promotion")]
    return [
        FeatureSpec(name="user_id", kind="id", role="user"),
        FeatureSpec(name="item_id", kind="id", role="item"),
        FeatureSpec(name="age", kind="numeric", role="user", transform=kind, **age),
        *numbers,
    ]


def made(log, folder, kind, gate, **age):
    return prepare(
        log, folder, columns=COLUMNS, label=EventLabel(event="click"), features=features(kind, **age), audit=gate
    )


def test_features_that_would_overflow_are_refused_with_their_names(log, tmp_path):
    with pytest.raises(DataError, match=r"score 33 of 100 for fp16, 80 are asked for; `spend` 0 .*MP001") as caught:
        made(log, tmp_path / "store", "none", AuditGate())
    assert "cure: true" in caught.value.hint
    assert caught.value.exit_code == 3
    assert not (tmp_path / "store" / "LATEST").exists()


def test_a_cure_gives_the_advised_transforms_and_says_so(log, tmp_path):
    store = made(log, tmp_path / "store", "none", AuditGate(cure=True))
    verdict = store.manifest.source["audit"]
    assert verdict["cured"] == ["spend", "promotion"]
    assert verdict["score"] > 95
    assert {name: entry["transform"] for name, entry in verdict["columns"].items()} == {
        "age": "none", "spend": "log1p_zscore", "promotion": "log1p_flag",
    }  # fmt: skip
    assert store.schema.feature("promotion").width == 2
    assert store.load("train").dense.shape[1] == 4
    assert store.load("train").dense.dtype == np.float16


def test_the_verdict_stands_outside_the_schema_s_digest(log, tmp_path):
    with_gate = made(log, tmp_path / "one", "auto", AuditGate(policy="bf16"))
    without = made(log, tmp_path / "two", "auto", None)
    assert with_gate.schema.digest == without.schema.digest
    assert without.manifest.source["audit"] is None
    json.dumps(with_gate.manifest.source["audit"], allow_nan=False)


def test_auto_treats_as_missing_what_a_name_rules_out(log, tmp_path):
    store = made(log, tmp_path / "store", "auto", None)
    transform = store.schema.feature("age").transform
    assert transform.constants["valid_from"] == 0.0
    assert transform.constants["stand_in"] == store.schema.feature("age").missing_value
    assert "below 0 count as missing" in store.manifest.source["notes"]["age"]
    stored = store.load("train").dense[:, 0].astype(np.float64)
    stand_in = transforms.apply(transform, [-3.0]).astype(np.float16)[0]
    assert 0.15 < np.mean(stored == stand_in) < 0.3
    assert transforms.invert(transform, stored).min() > 17


def test_a_valid_range_counts_what_lies_outside_as_missing(log, tmp_path):
    store = made(log, tmp_path / "store", "none", None, valid_from=18.0, valid_to=40.0)
    ages = store.load("train").dense[:, 0].astype(np.float64)
    assert ages.min() >= 18
    assert ages.max() <= 40
    assert "outside the valid range" in store.manifest.source["notes"]["age"]
    with pytest.raises(ConfigurationError, match="has a valid range, and `missing: refuse`"):
        made(log, tmp_path / "other", "none", None, valid_from=0.0, missing="refuse")
    with pytest.raises(ConfigurationError, match="`valid_from` is above `valid_to`"):
        FeatureSpec(name="x", kind="numeric", valid_from=2.0, valid_to=1.0)


def test_settings_of_a_gate_are_checked():
    with pytest.raises(ConfigurationError, match="must lie from 0 to 100, got 120"):
        AuditGate(fail_under=120)
    with pytest.raises(ConfigurationError, match="must be fp16 or bf16"):
        AuditGate(policy="int8")


def test_rows_that_took_the_mean_are_no_loss_where_rounding_left_them_beside_zero():
    draw = np.random.default_rng(1)
    raw = np.where(draw.random(6000) < 0.4, np.nan, draw.choice([80.1, 120.3], 6000))
    training = np.ones(len(raw), dtype=bool)
    spec = FeatureSpec(name="height", kind="numeric")
    table = pa.chunked_array([pa.array(raw, from_pandas=True)])
    feature, values, note = fit_numeric(spec, table, pa.chunked_array([np.arange(len(raw))]), training)
    assert 0 < np.abs(values[np.isnan(raw)]).max() < 1e-9
    column = FeatureColumn(feature=feature, values=values, vocabulary=None, note=note)
    assert audited([column], training, AuditGate()).columns["height"]["score"] > 95
