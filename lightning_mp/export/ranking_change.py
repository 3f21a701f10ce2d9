"""What an export changes for a ranking: top lists, ties, AUC, NDCG."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

K: Final = 10
TIE: Final = 1e-5
"""Logits nearer than this count as tied at the border of a top list: which of the two is in it means nothing."""

Numbers = NDArray[np.floating[Any]]


def top_lists(reference: Numbers, exported: Numbers, length: int, error: float = 0.0) -> dict[str, float | int]:
    """Compare the first `K` of many lists.

    Args:
        reference: (lists * length,) logits, list after list.
        exported: Logits of the same rows.
        length: Rows a list.
        error: Differences of logits that mean nothing, relative to the logit from 16 on; at least `TIE` counts so.

    Returns:
        `lists` and their `length`; `overlap_mean` and `overlap_min`, the share of the exported top `K` that the
        reference has too (or has within `TIE` of its last place); `same_order`, share of lists whose first `K`
        stand in the same order, ties broken by position; `ties_reference` and `ties_exported`, share of lists whose
        places `K` and `K + 1` have equal logits.
    """
    ours, theirs = (np.asarray(x, dtype=np.float64).reshape(-1, length) for x in (reference, exported))
    k = min(K, length)
    first, second = (np.argsort(-x, axis=1, kind="stable")[:, :k] for x in (ours, theirs))
    last = np.take_along_axis(ours, first[:, -1:], axis=1)
    tie = np.maximum(TIE, error * np.maximum(1.0, np.abs(last) / 16.0))
    overlap = (np.take_along_axis(ours, second, axis=1) >= last - tie).mean(axis=1)
    return {
        "lists": len(ours),
        "length": length,
        "k": k,
        "overlap_mean": float(overlap.mean()),
        "overlap_min": float(overlap.min()),
        "same_order": float((first == second).all(axis=1).mean()),
        "ties_reference": _ties(ours, k),
        "ties_exported": _ties(theirs, k),
    }


def auc(labels: NDArray[np.bool_], scores: Numbers) -> float | None:
    """Area under the ROC curve in float64, ties counted half; `None` when the labels are all one class."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]  # the middle of each group of ties
    return float((ranks[labels].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def ndcg(labels: Numbers, scores: Numbers, length: int = 20) -> tuple[float | None, int]:
    """Mean NDCG@`K` over consecutive lists of `length` rows that have a relevant one, and how many those are.

    Returns:
        `(None, 0)` when no list has a relevant row.

    Source:
        Jarvelin and Kekalainen, Cumulated gain-based evaluation of IR techniques, TOIS 2002; linear gain.
    """
    whole = len(labels) // length * length
    gains, ranked = (np.asarray(x[:whole], dtype=np.float64).reshape(-1, length) for x in (labels, scores))
    relevant = gains.any(axis=1)
    if not relevant.any():
        return None, 0
    gains, ranked = gains[relevant], ranked[relevant]
    discount = 1.0 / np.log2(np.arange(min(K, length)) + 2.0)
    order = np.argsort(-ranked, axis=1, kind="stable")[:, :K]
    best = -np.sort(-gains, axis=1)[:, :K]
    found = (np.take_along_axis(gains, order, axis=1) * discount).sum(axis=1) / (best * discount).sum(axis=1)
    return float(found.mean()), len(found)


def _ties(logits: NDArray[np.float64], k: int) -> float:
    ranked = -np.sort(-logits, axis=1)
    return float((ranked[:, k - 1] == ranked[:, k]).mean()) if logits.shape[1] > k else 0.0
