"""Rank all items for the users of the test part, by a model and by rules that cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.baselines.ease import ease
from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.baselines.item_knn import item_knn
from lightning_mp.baselines.markov import markov
from lightning_mp.baselines.own_frequency import own_frequency
from lightning_mp.baselines.popularity import popularity
from lightning_mp.baselines.recency_weights import recency_weights
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import DataError
from lightning_mp.metrics.full_ranking import full_ranking
from lightning_mp.metrics.paired_bootstrap import paired_bootstrap
from lightning_mp.metrics.row_slices import row_slices
from lightning_mp.metrics.user_metrics import UserMetrics
from lightning_mp.running.list_metrics_table import ListMetricsTable, ListRow, ListSlice

MODEL: Final = "model"
EASE_ITEMS: Final = 3000
"""Items up to which EASE, whose time grows with their cube, takes a second or two."""

Ints = NDArray[np.int64]
Scorer = Callable[[Ints], ArrayLike]


def evaluate_lists(
    store: FeatureStore,
    score: Scorer | None = None,
    *,
    exclude_seen: bool = True,
    k: int = 10,
    version: int | None = None,
    max_users: int = 20_000,
) -> ListMetricsTable:
    """Metrics of the model's lists and of the baselines', over the same users and the same items.

    An item is relevant to a user who took it in the test part: a row with a label above 0, or any row where the store
    has no labels. The baselines know what was taken in the training and validation parts.

    Args:
        store: With a test part; its rows know their user, item and time.
        score: Takes codes of users (u,), places in `FeatureStore.users()`, and gives finite scores (u, items) in the
            order of `FeatureStore.items()`; `None`: the baselines alone.
        exclude_seen: Whether what a user has a row of before the test part is no candidate, nor asked for. Turn it off
            where users come back to items.
        k: Items of each list that count.
        version: Of the store; the latest one when left out.
        max_users: Users that are ranked for, drawn with a fixed seed where there are more.

    Returns:
        The table, with a note for each baseline that the model does not beat.

    Raises:
        DataError: There is no test part, its rows have no users or items, or no user took anything.
        ArtifactError: There is no such version of the store.
    """
    parts = {name: store.load(name, version) for name in store.manifest_of(version).splits}
    earlier = [parts[name] for name in ("train", "validation") if name in parts]
    if "test" not in parts or not earlier:
        raise DataError(f"the store `{store.path}` has no {'training' if 'test' in parts else 'test'} part", "split it")
    past = {key: np.concatenate([getattr(t, key) for t in earlier]) for key in ("user", "item", "time")}
    took = np.concatenate([_taken(table) for table in earlier])
    test, taken = parts["test"], _taken(parts["test"])
    keys = {"users": store.users(version), "items": store.items(version)}
    sizes = {name: 0 if values is None else len(values) for name, values in keys.items()}
    lowest = min(codes.min(initial=0) for codes in (past["user"], past["item"], test.user, test.item))
    if lowest < 0 or not all(sizes.values()):
        raise DataError(f"the rows of the store `{store.path}` name no users and items", "prepare it from an event log")
    relevant = _ones(test.user[taken], test.item[taken], sizes)
    seen = _ones(past["user"], past["item"], sizes) if exclude_seen else None
    if seen is not None:
        relevant = relevant - relevant.multiply(seen)
        relevant.eliminate_zeros()
    users = np.flatnonzero(np.diff(relevant.indptr))
    if not len(users):
        raise DataError("no user took an item in the test part", "change `split`, or `exclude_seen`")
    ranked = np.sort(np.random.default_rng(0).permutation(users)[:max_users])
    known = {key: column[took] for key, column in past.items()}
    of_items = row_slices(known["user"], known["item"], np.zeros(sizes["items"], np.int64), np.arange(sizes["items"]))
    masks = {name: mask for name, mask in of_items.items() if name.endswith(" items")}
    scorers = ({} if score is None else {MODEL: score}) | _baselines(known, sizes, exclude_seen=exclude_seen)
    results = {
        name: full_ranking(scorer, relevant, seen=seen, users=ranked, k=k, item_slices=masks)
        for name, scorer in scorers.items()
    }
    notes = (
        [] if len(ranked) == len(users) else [f"ranked for {len(ranked):,} of {len(users):,} users, drawn at random"]
    )
    return _table(results, notes, np.isin(ranked, known["user"]), k, sizes["items"])


def _baselines(known: dict[str, Ints], sizes: dict[str, int], *, exclude_seen: bool) -> dict[str, Scorer]:
    user, item, time = known["user"], known["item"], known["time"]
    every = np.arange(sizes["items"])
    nobody = interaction_matrix([], [], **sizes)
    tenth = max(1, int(np.ptp(time)) // 10) if len(time) else 1
    latest = popularity(item, every, train_time=time, window=tenth)
    found: dict[str, Scorer] = {
        "popularity": HistoryScorer(history=nobody, otherwise=popularity(item, every)),
        "popularity, latest tenth of the time": HistoryScorer(history=nobody, otherwise=latest),
    }
    if not exclude_seen:
        found["own frequency"] = own_frequency(user, item, **sizes)
    lately = recency_weights(user, time, per_step=0.8)
    itself = not exclude_seen
    found |= {
        "item-kNN": item_knn(user, item, **sizes, count_itself=itself),
        "item-kNN, latest first": item_knn(user, item, **sizes, weight=lately, count_itself=itself),
        "Markov": markov(user, item, time, **sizes),
    }
    if len(user) and len(np.unique(item)) <= EASE_ITEMS:
        found["EASE"] = ease(user, item, **sizes)
    return found


def _table(
    results: dict[str, UserMetrics], notes: list[str], known: NDArray[np.bool_], k: int, items: int
) -> ListMetricsTable:
    rows = []
    for name, result in results.items():
        means = result.mean()
        rows.append(ListRow(name=name, **{key: means[key] for key in ("ndcg", "recall", "hit_rate", "mrr")}))
    mine = results.get(MODEL)
    rival = max((row for row in rows if row.name != MODEL), key=lambda row: row.ndcg)
    theirs = results[rival.name]
    if mine is not None:
        notes = [*_verdict(rows, rival), *notes]
        if len(mine.users) > 1:
            found = paired_bootstrap(mine.ndcg, theirs.ndcg)
            what = "decides" if found.decided else "does not decide"
            notes.append(
                f"NDCG@{k} of the model less that of `{rival.name}`: {found.mean:+.4f}, 95 % between {found.low:+.4f} "
                f"and {found.high:+.4f} over {found.users:,} users, which {what} between them"
            )
    slices = []
    of_users = {"new users": ~known, "known users": known}
    for name, mask in of_users.items():
        if 0 < mask.sum() < len(mask):
            ours = None if mine is None else mine.where(mask).mean()["ndcg"]
            slices.append(
                ListSlice(name=name, users=int(mask.sum()), ndcg=ours, rival_ndcg=theirs.where(mask).mean()["ndcg"])
            )
    for name, part in theirs.slices.items():
        if len(part.users):
            ours = None if mine is None else mine.slices[name].mean()["ndcg"]
            slices.append(ListSlice(name=name, users=len(part.users), ndcg=ours, rival_ndcg=part.mean()["ndcg"]))
    return ListMetricsTable(
        k=k,
        users=len(theirs.users),
        items=items,
        rows=tuple(rows),
        slices=tuple(slices),
        rival=rival.name,
        notes=tuple(notes),
    )


def _verdict(rows: list[ListRow], rival: ListRow) -> list[str]:
    model = rows[0]
    lost = [row for row in rows[1:] if model.ndcg <= row.ndcg]
    if not lost:
        return [f"the model beats every baseline; the strongest is `{rival.name}`"]
    return [f"the model does not beat `{row.name}`: NDCG {model.ndcg:.4f} against {row.ndcg:.4f}" for row in lost]


def _taken(table: Any) -> NDArray[np.bool_]:
    labels = table.labels
    return np.asarray(labels[:, 0] > 0) if labels.shape[1] else np.ones(len(table), dtype=bool)


def _ones(user: Ints, item: Ints, sizes: dict[str, int]) -> Any:
    matrix = interaction_matrix(user, item, **sizes)
    matrix.data[:] = 1
    return matrix
