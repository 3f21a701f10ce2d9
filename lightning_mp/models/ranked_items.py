"""All items ranked for each user or query at the end of an epoch, and what is logged of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
from lightning.pytorch.utilities import rank_zero_warn

from lightning_mp.data.known_pairs import known_pairs
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import LightningMPWarning
from lightning_mp.metrics.full_ranking import full_ranking
from lightning_mp.metrics.user_metrics import UserMetrics

Ints = npt.NDArray[np.int64]
LOGGED = ("ndcg", "recall", "mrr")


def trainers_store(trainer: Any) -> tuple[FeatureStore, int | None] | None:
    """The store of the Trainer's datamodule and the version it reads; `None` for other data."""
    datamodule = getattr(trainer, "datamodule", None)
    store = getattr(datamodule, "store", None)
    if not isinstance(store, FeatureStore):
        return None
    return store, getattr(datamodule, "version", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a ranking.

    Attributes:
        k: Length of the lists.
        exclude_seen: Whether what a user took before is no candidate, nor asked for.
        version: Of the store; the latest one when left out.
    """

    k: int = 10
    exclude_seen: bool = True
    version: int | None = None


def rank_users(
    store: FeatureStore,
    part: str,
    asked: Asked,
    *,
    users: Ints,
    score: Callable[[Ints], npt.NDArray[np.float32]],
) -> UserMetrics | None:
    """Rank all items for users, and compare with what they took in a part of the store.

    Args:
        store: Its rows know their users and items; a label above 0 says that the item was taken.
        part: `"validation"` or `"test"`.
        asked: Length of the lists and candidates.
        users: (U,) codes.
        score: Gives (u, C) scores of all items for codes of users.

    Returns:
        `None` where no user of them took anything.
    """
    table = store.load(part, asked.version)
    taken = table.labels[:, 0] > 0 if table.labels.shape[1] else np.ones(len(table), dtype=bool)
    earlier = [store.load(name, asked.version) for name in parts_before(store, part, asked.version)]
    everything = [t for t in (table, *earlier) if len(t)]
    count = 1 + max(int(t.user.max()) for t in everything)
    keys = store.items(asked.version)
    shape = (count, 1 + max(int(t.item.max()) for t in everything) if keys is None else len(keys))
    relevant = known_pairs(table.user[taken], table.item[taken], shape)
    seen = None
    if asked.exclude_seen:
        user, item = (np.concatenate([getattr(t, name) for t in earlier]) for name in ("user", "item"))
        seen = known_pairs(user, item, shape)
        relevant = relevant - relevant.multiply(seen)
        relevant.eliminate_zeros()
    wanted = users[np.diff(relevant.indptr)[users] > 0]
    if not len(wanted):
        return None

    return full_ranking(score, relevant, seen=seen, users=wanted, k=asked.k)


def only_present(scores: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Scores with the items that are no candidates below all others."""
    if present.all():
        return scores
    lowest = scores.min(axis=1, keepdims=True) - 1.0
    return np.where(present, scores, lowest)


def parts_before(store: FeatureStore, part: str, version: int | None) -> list[str]:
    """The parts of a store that are earlier than one."""
    order = ("train", "validation", "test")
    return [name for name in order[: order.index(part)] if name in store.manifest_of(version).splits]


def log_ranking(module: pl.LightningModule, stage: str, found: UserMetrics | None) -> None:
    """Log the means over users under `<stage>_ndcg`, `<stage>_recall` and `<stage>_mrr`; NaN where there are none."""
    if found is None:
        text = (
            f"`{stage}_ndcg`, `{stage}_recall` and `{stage}_mrr` are undefined: nobody took anything that is asked for"
        )
        rank_zero_warn(
            f"{text}\n\nhint: widen that part of the split, or mend the `label`", category=LightningMPWarning
        )
    means = {name: float("nan") for name in LOGGED} if found is None else found.mean()
    for name in LOGGED:
        module.log(f"{stage}_{name}", float(means[name]), prog_bar=name == "ndcg", sync_dist=True)
