"""Set a model's test scores beside the baselines and, on a synthetic log, beside the best possible."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lightning_mp.baselines.boosted_trees import boosted_trees
from lightning_mp.baselines.item_mean import item_mean
from lightning_mp.baselines.popularity import popularity
from lightning_mp.baselines.running_user_item_mean import running_user_item_mean
from lightning_mp.baselines.user_item_mean import user_item_mean
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.synthetic.true_probabilities import Outcome, true_probabilities
from lightning_mp.errors import DataError
from lightning_mp.metrics.auc import AUC
from lightning_mp.metrics.log_loss import LogLoss
from lightning_mp.running.metrics_table import MetricsRow, MetricsTable
from lightning_mp.running.own_outcomes import own_outcomes
from lightning_mp.running.rivals import doubt, loss_note, slices_of, user_auc_of

MODEL: Final = "model"
TREES: Final = "boosted trees"
RUNNING: Final = "running user + item mean"
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
BEST: Final = "best possible (true probabilities)"

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def evaluate(
    store: FeatureStore,
    *,
    row: ArrayLike,
    score: ArrayLike,
    log: str | Path | None = None,
    version: int | None = None,
    label: int = 0,
) -> MetricsTable:
    """Metrics of the model, of simple baselines and of the true probabilities, all on the rows that the model scored.

    The static baselines are fitted on all rows before the test part (training and validation); boosted trees, where
    LightGBM is installed, on the latest 200,000 training rows; the running one goes on learning through the test part,
    strictly point in time. A label between 0 and 1 counts as positive in the AUC when it is above 0, as it does in
    `RankingModule`.

    The AUC inside users is left out for what knows how the user's own earlier rows ended: the running mean, and where
    a feature does (`own_outcomes`) the model and the trees, without a verdict inside users.

    Args:
        store: With a test part; its rows know their user, item and time.
        row: (N,) rows of the source log that were scored, as `RankingModule.predict_step` gives them under `row`, in
            any order; where one stands twice (a padded batch of several processes), its first score counts.
        score: (N,) scores in [0, 1], as under `score`.
        log: The synthetic log that the store was made from; `None` for any other log.
        version: Of the store; the latest one when left out.
        label: Column of the labels that was scored.

    Returns:
        The table, with a note for each baseline that the model does not beat in AUC, or in log loss.

    Raises:
        DataError: There is not one score a row, no row was scored, or a row is not in the test part.
        ArtifactError: There is no such version of the store.
    """
    parts = {name: store.load(name, version) for name in store.manifest_of(version).splits}
    if "test" not in parts:
        raise DataError(f"the store `{store.path}` has no test part", "change `split`")
    rows, scores = _once(np.asarray(row, dtype=np.int64).ravel(), np.asarray(score, dtype=np.float64).ravel())
    where = _places(parts["test"].row, rows, store.path)
    names = [name for name in parts if name != "test"] + ["test"]
    user, item, time = (np.concatenate([getattr(parts[p], key) for p in names]) for key in ("user", "item", "time"))
    told = np.concatenate([parts[p].labels[:, label] for p in names]).astype(np.float64)
    history = len(told) - len(parts["test"])
    target, chosen, past = told[history:][where], history + where, slice(0, history)
    keyed = bool(user.min() >= 0 and item.min() >= 0)
    entries = {MODEL: (scores, True)}
    if keyed:
        static = user_item_mean(user[past], item[past], told[past], user[chosen], item[chosen])
        entries |= {
            "popularity": (popularity(item[past], item[chosen]), False),
            "item mean": (item_mean(item[past], told[past], item[chosen]), True),
            "user + item mean": (static, False),
            RUNNING: (running_user_item_mean(user, item, time, told)[chosen], False),
        }
    notes: list[str] = []
    trees = _trees(store, version, label, notes)
    if trees is not None:
        entries[TREES] = (trees[where], True)
    of_users = user[chosen] if keyed else None
    source = store.manifest_of(version).source
    followers = own_outcomes(source, span_us=int(np.ptp(time[chosen]))) if keyed else ()
    blind = {MODEL, TREES} if followers else set()
    if (source.get("settings") or {}).get("negatives") is None:
        blind.add(RUNNING)  # its mean of the user is one of the labels before the row
    lines = [
        _line(name, values, target, None if name in blind else of_users, probabilities=known)
        for name, (values, known) in entries.items()
    ]
    notes = _not_beaten(lines) + _costlier(lines, entries, target, of_users) + notes
    rival = max((line for line in lines[1:] if line.auc is not None), key=lambda line: line.auc or 0, default=None)
    name = store.manifest_of(version).schema.labels[label].name
    event = next((known for known in OUTCOMES if known == name), None)
    if log is not None and event is not None:
        lines.append(_line(BEST, true_probabilities(log, rows, event=event), target, of_users, probabilities=True))
        notes += _beside_the_best(lines[0], lines[-1], target)
    theirs = None if rival is None else entries[rival.name][0]
    inside = max(
        (line for line in lines[1:] if line.user_auc is not None and line.name != BEST),
        key=lambda line: line.user_auc or 0,
        default=None,
    )
    if followers:
        notes.append(_withheld(followers))
    elif inside is not None and of_users is not None:
        sentence = doubt(scores, entries[inside.name][0], inside.name, target, of_users)
        notes += [] if sentence is None else [sentence]
    notes += [
        f"`{line.name}` has an undefined metric: {line.undefined}" for line in lines if line.undefined is not None
    ]
    train = slice(0, len(parts["train"]))
    unseen = {**_unseen("user", user[train], user[chosen]), **_unseen("item", item[train], item[chosen])}
    notes.append(
        f"unseen in training: {unseen['users']:,} users ({unseen['user_rows'] / len(target):.0%} of the rows), "
        f"{unseen['items']:,} items ({unseen['item_rows'] / len(target):.0%})"
    )
    known, here = (user[train], item[train]), (user[chosen], item[chosen])
    return MetricsTable(
        rows=tuple(lines),
        notes=tuple(notes),
        unseen=unseen,
        slices=slices_of(scores, theirs, target, known, here) if keyed else (),
        rival=None if rival is None else rival.name,
    )


def _trees(store: FeatureStore, version: int | None, label: int, notes: list[str]) -> Floats | None:
    if find_spec("lightgbm") is None:
        notes.append(f"`{TREES}` are left out: run `pip install 'lightning-mp[search]'` to see them here")
        return None
    return boosted_trees(store, version=version, label=label, max_rows=200_000, rounds=150, learning_rate=0.1)


def _once(rows: Ints, scores: Floats) -> tuple[Ints, Floats]:
    if rows.shape != scores.shape:
        raise DataError(f"there are {len(rows):,} rows and {len(scores):,} scores", "give one score a row")
    if not len(rows):
        raise DataError("no row was scored", "give the rows and scores of the test part")
    kept, first = np.unique(rows, return_index=True)
    return kept, scores[first]


def _places(there: Ints, rows: Ints, path: Path) -> Ints:
    order = np.argsort(there)
    place = np.minimum(np.searchsorted(there[order], rows), len(there) - 1)
    missing = rows[there[order][place] != rows]
    if len(missing):
        raise DataError(
            f"row {missing[0]:,} was scored and is not in the test part of `{path}` ({len(missing):,} such rows)",
            "score the test part of the same version of the store",
        )
    return np.asarray(order[place], dtype=np.int64)


def _line(name: str, scores: Floats, target: Floats, user: Ints | None, *, probabilities: bool = False) -> MetricsRow:
    auc, loss = AUC(), LogLoss(from_logits=False)
    wide = torch.from_numpy(np.ascontiguousarray(scores))
    auc.update(wide, torch.from_numpy((target > 0).astype(np.float64)))
    area, reason = float(auc.compute()), auc.reason
    cost = float("nan")
    if probabilities:
        loss.update(wide, torch.from_numpy(target))
        cost, reason = float(loss.compute()), reason or loss.reason
        if np.isposinf(cost):
            reason = "its log loss is infinite, since a score of 0 or 1 was wrong"
    inside = None if user is None else user_auc_of(scores, target, user)
    return MetricsRow(
        name=name, auc=_finite(area), log_loss=_finite(cost), rows=len(target), user_auc=inside, undefined=reason
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _not_beaten(lines: list[MetricsRow]) -> list[str]:
    mine = lines[0].auc
    if mine is None:
        return []
    return [
        f"the model does not beat `{line.name}`: AUC {mine:.4f} against {line.auc:.4f}"
        for line in lines[1:]
        if line.auc is not None and mine <= line.auc
    ]


def _costlier(
    lines: list[MetricsRow], entries: dict[str, tuple[Floats, bool]], target: Floats, user: Ints | None
) -> list[str]:
    """A better order of the rows can come with worse probabilities: no AUC shows that."""
    mine = lines[0].log_loss
    return [
        loss_note(entries[MODEL][0], entries[line.name][0], line.name, target, user)
        for line in lines[1:]
        if mine is not None and line.log_loss is not None and mine >= line.log_loss
    ]


def _withheld(followers: tuple[str, ...]) -> str:
    names = ", ".join(f"`{name}`" for name in followers)
    verb = "follows" if len(followers) == 1 else "follow"
    return (
        f"inside users no verdict: {names} {verb} the user's own earlier outcomes, so a user's rows after a positive "
        "one stand apart from those before it, and an AUC inside users shows that too, learned or not"
    )


def _beside_the_best(model: MetricsRow, best: MetricsRow, target: Floats) -> list[str]:
    if model.auc is None or best.auc is None:
        return []
    gap = best.auc - model.auc
    rarer = min(int((target > 0).sum()), int((target == 0).sum()))
    # No AUC varies more than a share over the rarer class does (Birnbaum and Klose, 1957).
    chance = 3 * float(np.sqrt(best.auc * (1 - best.auc) / rarer))
    if -gap > chance:
        return [f"the model passes the best possible AUC by {-gap:.4f}, more than chance: a feature knows the future"]
    return [f"the model is {gap:.4f} AUC below the best possible" if gap > 0 else "the model is as good as can be"]


def _unseen(kind: str, known: Ints, here: Ints) -> dict[str, int]:
    new = ~np.isin(here, known)
    return {f"{kind}s": len(np.unique(here[new])), f"{kind}_rows": int(new.sum())}
