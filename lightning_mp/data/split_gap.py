"""How much kinder a random split is than a split by time: what an offline test on random rows would promise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightning_mp.data.rank_auc import rank_auc
from lightning_mp.data.shuffled_rows import shuffled_rows

Int64 = npt.NDArray[np.int64]
_BINS = 32
_PRIOR = 10.0
_MOST_ROWS = 200_000


def split_gap(
    columns: Sequence[npt.NDArray[np.int32] | npt.NDArray[np.float64]],
    labels: npt.NDArray[np.float32],
    tested: npt.NDArray[np.bool_],
    *,
    seed: int = 0,
) -> tuple[float, float] | None:
    """AUC of the simplest model on the test part, split by time and at random.

    The model adds up, over the features, the log-odds of the training rows that share the feature's value (numbers cut
    into 32 parts of equal size).

    Args:
        columns: (N,) codes or numbers.
        labels: (N,) in [0, 1]; above 0 counts as positive.
        tested: (N,) rows of the test part.
        seed: Of the random split, which has as many test rows.

    Returns:
        Both AUCs; `None` where one is not defined.
    """
    generator = np.random.default_rng(seed)
    chosen = np.sort(shuffled_rows(len(labels), generator)[:_MOST_ROWS])
    positive, by_time = labels[chosen] > 0, tested[chosen]
    codes = [_codes(column[chosen]) for column in columns]
    at_random = generator.permutation(by_time)
    found = [_auc(codes, positive, test) for test in (by_time, at_random)]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _codes(column: npt.NDArray[np.int32] | npt.NDArray[np.float64]) -> Int64:
    if column.dtype.kind != "f":
        return column.astype(np.int64)
    column = column if column.ndim == 1 else column[:, 0]
    edges = np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1]))
    return np.searchsorted(edges, column, side="right")


def _auc(codes: Sequence[Int64], positive: npt.NDArray[np.bool_], test: npt.NDArray[np.bool_]) -> float | None:
    train = ~test
    if not positive[train].any() or positive[train].all():
        return None
    mean = float(positive[train].mean())
    scores = np.zeros(int(test.sum()))
    for column in codes:
        size = int(column.max()) + 1
        total = np.bincount(column[train], positive[train], minlength=size)
        count = np.bincount(column[train], minlength=size)
        rate = (total + _PRIOR * mean) / (count + _PRIOR)
        scores += np.log(rate / (1 - rate))[column[test]]
    return rank_auc(positive[test], scores)
