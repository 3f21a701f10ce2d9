"""The table of a hostile setting, as its owner has it, and as the package's gate hands it on."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
from stability_settings import Setting

from lightning_mp.data.audit.gate import AuditGate
from lightning_mp.data.audited_features import through_gate
from lightning_mp.data.columns import Columns, ConstantEvent
from lightning_mp.data.feature_columns import feature_columns
from lightning_mp.data.feature_spec import FeatureSpec

TRAINING, HELD_OUT, NUMBERS = 20_000, 5_000, 8
USERS, ITEMS = 300, 200
Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Training rows first, then those held out, in which no number is bad.

    Attributes:
        ids: (N, 2) int64.
        numbers: (N, 8) float64, NaN and 70000 in the bad rows.
        labels: (N,) float32.
        bad: (N,) rows that went bad.
    """

    ids: np.ndarray[Any, np.dtype[np.int64]]
    numbers: Numbers
    labels: np.ndarray[Any, np.dtype[np.float32]]
    bad: np.ndarray[Any, np.dtype[np.bool_]]


def make_table(setting: Setting, seed: int) -> Table:
    """Labels come from hidden numbers; those in the table are rising functions of them."""
    random = np.random.default_rng([setting.number, seed])
    rows = TRAINING + HELD_OUT
    hidden = random.standard_normal((rows, NUMBERS))
    ids = np.stack([random.integers(USERS, size=rows), random.integers(ITEMS, size=rows)], axis=1)
    effects = random.standard_normal(USERS)[ids[:, 0]] + random.standard_normal(ITEMS)[ids[:, 1]]
    crosses = sum(hidden[:, a] * hidden[:, b] for a, b in ((0, 7), (1, 6), (2, 5), (3, 4)))
    strength = hidden @ random.choice([-1.0, 1.0], NUMBERS) + 0.5 * crosses + 0.5 * effects
    labels = random.random(rows) < _sigmoid(strength + _offset(strength, setting.positives))
    numbers = hidden.copy()
    places = np.vectorize(NormalDist().cdf)(hidden)
    for column in range(setting.wide_columns):
        numbers[:, column] = 0.01 * 10 ** (setting.decades * places[:, column])
    for column in range(setting.wide_columns, setting.wide_columns + setting.burst_columns):
        height = (places[:, column] - setting.zero_share) / (1 - setting.zero_share)
        numbers[:, column] = np.where(height < 0, 0.0, setting.burst ** np.maximum(height, 0.0))
    if setting.scaling == "zscore":
        numbers = (numbers - numbers[:TRAINING].mean(0)) / numbers[:TRAINING].std(0)
    bad = np.zeros(rows, dtype=bool)
    if setting.bad != "none":
        bad[:TRAINING] = random.random(TRAINING) < setting.bad_share
        values = {"nan": [np.nan], "70000": [70_000.0], "both": [np.nan, 70_000.0]}[setting.bad]
        numbers[bad, random.integers(NUMBERS, size=bad.sum())] = random.choice(values, bad.sum())
    return Table(ids=ids, numbers=numbers, labels=labels.astype(np.float32), bad=bad)


def through_the_gate(table: Table) -> Numbers:
    """What a recipe feeds the network with `transform: auto` and `audit: {policy: fp16, cure: true}`, (N, D)."""
    names = [f"number_{column}" for column in range(NUMBERS)]
    columns = {name: pa.array(table.numbers[:, column], from_pandas=True) for column, name in enumerate(names)}
    rows = pa.table({"row": pa.array(np.arange(len(table.labels))), **columns})
    training = np.arange(len(table.labels)) < TRAINING
    kept = Columns(user="user", item="item", time="time", event=ConstantEvent(constant="impression"))
    specs = [FeatureSpec(name=name, kind="numeric", transform="auto", missing="median") for name in names]

    def make(wanted: Any) -> Any:
        return feature_columns(wanted, rows, training, kept), {}

    (made, _), _ = through_gate(specs, make(specs), make, training, AuditGate(policy="fp16", cure=True))
    fed = [
        column.values.reshape(len(training), -1).astype(column.feature.stored_dtype).astype(np.float64)
        for column in made
    ]
    return np.concatenate(fed, axis=1)


def auc(scores: Numbers, labels: np.ndarray[Any, Any]) -> float:
    """Area under the curve, ties at their mean rank; NaN where a score is not finite."""
    if not np.isfinite(scores).all():
        return float("nan")
    _, codes, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[codes]
    positives = int(labels.sum())
    over = ranks[labels > 0].sum() - positives * (positives + 1) / 2
    return float(over / (positives * (len(labels) - positives)))


def _sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


def _offset(strength: Numbers, share: float) -> float:
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(strength + middle).mean() < share else (low, middle)
    return low
