"""Numbers taken over the whole log, against NumPy's correlation over all rows at once."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lightning_mp.data import whole_log_means
from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.leakage import Samples
from lightning_mp.data.whole_log_means import require_no_full_history
from lightning_mp.errors import LeakageError

ROWS = 4000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(whole_log_means, "_PIECE", 333)


@pytest.fixture
def samples():
    draw = np.random.default_rng()
    return Samples(
        row=np.arange(ROWS) * 2,
        time=draw.integers(0, 10**12, ROWS),
        labels=(draw.random(ROWS) < 0.4).astype(np.float32),
        user=draw.integers(0, 90, ROWS),
        item=draw.integers(0, 50, ROWS),
    )


def made(samples, who, what):
    codes = getattr(samples, who)
    total, count = np.bincount(codes, samples.labels)[codes], np.bincount(codes)[codes]
    return {"mean": total / count, "other": (total - samples.labels) / np.maximum(count - 1, 1), "rows": count * 1.0}[
        what
    ]


@pytest.mark.parametrize("who", ["user", "item"])
@pytest.mark.parametrize(
    ("what", "words"),
    [("mean", "the mean of `y`"), ("other", "the mean of `y` in the other rows"), ("rows", "the number of rows")],
)
@pytest.mark.parametrize("scale", [1.0, -3e200])
def test_means_and_counts_are_refused_with_the_first_row_that_sees_ahead(samples, who, what, words, scale):
    values = made(samples, who, what) * scale + 1e-3 * scale
    codes = getattr(samples, who)
    last = np.array([samples.time[codes == code].max() for code in codes])
    ahead = last > samples.time
    first = np.flatnonzero(ahead)[np.argmin(samples.time[ahead])]
    with pytest.raises(LeakageError, match=re.escape(f"`x` is {words} by {who} over the whole log")) as caught:
        require_no_full_history("x", values, samples, {"y": samples.labels})
    assert f"{ahead.sum():,} of {ROWS:,} rows see ahead; the first is row {samples.row[first]:,}," in str(caught.value)
    assert f"knows of rows until {to_iso(int(last[first]))}" in str(caught.value)


@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_likeness_is_numpy_s_correlation(samples, noise):
    draw = np.random.default_rng()
    values = made(samples, "user", "mean") + noise * draw.normal(0, 0.1, ROWS)
    values[draw.random(ROWS) < 0.2] = np.nan
    present = ~np.isnan(values)
    keys = whole_log_means._Keys(codes=samples.user, values=values, targets={"y": samples.labels})
    codes = samples.user[present]
    total, count = np.bincount(codes, samples.labels[present])[codes], np.bincount(codes)[codes]
    often = count > 1
    mean = abs(np.corrcoef((total / count)[often], values[present][often])[0, 1])
    other = ((total - samples.labels[present]) / np.maximum(count - 1, 1))[often]
    assert keys.likeness()[0] == pytest.approx(mean)
    assert keys.likeness()[1] == pytest.approx(abs(np.corrcoef(other, values[present][often])[0, 1]))


def test_other_numbers_pass(samples):
    draw = np.random.default_rng()
    for values in (draw.normal(size=ROWS), np.ones(ROWS), np.full(ROWS, np.nan)):
        require_no_full_history("x", values, samples, {"y": samples.labels})
