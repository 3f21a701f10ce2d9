"""The model beside its strongest baseline: on parts of the test rows, and with the doubt that few users leave."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_mp.metrics.auc import AUC
from lightning_mp.metrics.group_auc import GroupAUC
from lightning_mp.metrics.paired_bootstrap import paired_bootstrap
from lightning_mp.metrics.ranked_groups import RankedGroups
from lightning_mp.metrics.row_slices import row_slices
from lightning_mp.running.metrics_table import SliceRow

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def auc_of(scores: Floats, target: Floats) -> float | None:
    """AUC of scores (N,) against targets (N,) above 0; `None` where it is undefined."""
    metric = AUC()
    metric.update(_tensor(scores), _tensor(target > 0))
    value = float(metric.compute())
    return value if np.isfinite(value) else None


def user_auc_of(scores: Floats, target: Floats, user: Ints) -> float | None:
    """Mean over users of the AUC inside each, weighted by rows; `None` where it is undefined."""
    metric = GroupAUC()
    metric.update(_tensor(scores), _tensor(target > 0), _tensor(user))
    value = float(metric.compute())
    return value if np.isfinite(value) else None


def slices_of(
    model: Floats, rival: Floats | None, target: Floats, past: tuple[Ints, Ints], here: tuple[Ints, Ints]
) -> tuple[SliceRow, ...]:
    """The AUC of both on the rows of each slice that is neither empty nor everything.

    Args:
        model: (N,) scores.
        rival: (N,) scores, or `None`.
        target: (N,) labels.
        past: Users and items of the training rows.
        here: Users and items of the N rows.
    """
    found = []
    for name, mask in row_slices(*past, *here).items():
        rows = int(mask.sum())
        if 0 < rows < len(mask):
            theirs = None if rival is None else auc_of(rival[mask], target[mask])
            ours, positives = auc_of(model[mask], target[mask]), int((target[mask] > 0).sum())
            found.append(SliceRow(name=name, rows=rows, auc=ours, rival_auc=theirs, positives=positives))
    return tuple(found)


def doubt(model: Floats, rival: Floats, name: str, target: Floats, user: Ints) -> str | None:
    """One sentence: whether the model beats the rival inside users, with an interval; `None` where nobody can say."""
    ours, weights = _of_users(model, target, user)
    theirs, _ = _of_users(rival, target, user)
    told = weights > 0
    if told.sum() < 2:
        return None
    samples = int(np.clip(2e7 / told.sum(), 200, 2000))
    found = paired_bootstrap(ours[told], theirs[told], weights=weights[told], samples=samples)
    if not found.decided:
        verdict = f"the model and `{name}` cannot be told apart"
    else:
        verdict = f"the model beats `{name}`" if found.low > 0 else f"`{name}` beats the model"
    return (
        f"inside users {verdict}: AUC {found.mean:+.4f}, 95 % between {found.low:+.4f} and {found.high:+.4f} over "
        f"{found.users:,} users"
    )


def loss_note(model: Floats, rival: Floats, name: str, target: Floats, user: Ints | None) -> str:
    """One sentence: how much worse the model's log loss is than the rival's, and how sure that is.

    Args:
        model: (N,) probabilities whose log loss is finite.
        rival: (N,) the same.
        name: Of the rival.
        target: (N,) labels in [0, 1].
        user: (N,) the user of each row, over whom the interval is; `None`: no interval.
    """
    ours, theirs = _losses(model, target), _losses(rival, target)
    told = f"the model's log loss is no better than that of `{name}`: {ours.mean():.4f} against {theirs.mean():.4f}"
    place = np.zeros(0, dtype=np.int64) if user is None else np.unique(user, return_inverse=True)[1]
    rows = np.bincount(place)
    if len(rows) < 2:
        return told
    means = [np.bincount(place, weights=losses) / rows for losses in (ours, theirs)]
    found = paired_bootstrap(*means, weights=rows, samples=int(np.clip(2e7 / len(rows), 200, 2000)))
    doubtful = "" if found.decided else ", which may be chance"
    return (
        f"{told}, {found.mean:+.4f}, 95 % between {found.low:+.4f} and {found.high:+.4f} over {found.users:,} users"
        f"{doubtful}"
    )


def _losses(scores: Floats, target: Floats) -> Floats:
    wide = torch.from_numpy(np.stack([scores, target]))
    losses: Floats = -(torch.xlogy(wide[1], wide[0]) + torch.special.xlog1py(1 - wide[1], -wide[0])).numpy()
    return losses


def _of_users(scores: Floats, target: Floats, user: Ints) -> tuple[Floats, Floats]:
    """AUC and weight of each user, users in ascending order."""
    if np.isnan(scores).any():
        return np.zeros(0), np.zeros(0)
    values, weights = GroupAUC().per_group(RankedGroups.of(_tensor(scores), _tensor(target > 0), _tensor(user)))
    return values.numpy(), weights.numpy()


def _tensor(values: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
