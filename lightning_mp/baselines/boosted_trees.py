"""Boosted trees on the features of a store: the model that deep ones most often fail to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.baselines.earlier_sums import earlier_sums
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.optional import require

if TYPE_CHECKING:  # pyarrow, which no other baseline needs
    from lightning_mp.data.store.feature_store import FeatureStore
    from lightning_mp.data.store.feature_table import FeatureTable

Floats = NDArray[np.float64]


def boosted_trees(
    store: FeatureStore,
    *,
    part: str = "test",
    label: int = 0,
    version: int | None = None,
    max_rows: int = 1_000_000,
    rounds: int = 500,
    learning_rate: float = 0.05,
    patience: int = 25,
    prior: float = 10.0,
    seed: int = 0,
    threads: int = 0,
) -> Floats:
    """Train LightGBM on the training part and score a later one; the validation part, if there is one, stops it.

    It is given the store's numbers, its categories and ids of at most 10,000 values, and what each row could know of
    its user and its item: count and mean label of the strictly earlier rows of the training and validation parts. A
    label in [0, 1] is a soft target, as in `RankingModule`.

    Args:
        store: With a training part.
        part: The split to score.
        label: Column of the labels that is learned.
        version: Of the store; the latest one when left out.
        max_rows: Training rows that are used, the latest.
        rounds: Trees at most; 100 where there is no validation part to stop at.
        learning_rate: Share of each tree that is added.
        patience: Trees without a better log loss on the validation part after which it stops.
        prior: Rows that the mean of all counts for in the means of users and items.
        seed: Of LightGBM, which is asked to be deterministic.
        threads: 0: as many as LightGBM takes.

    Returns:
        (N,) float64 probabilities, in the order of the rows of `part`.

    Raises:
        MissingExtraError: LightGBM is not installed: `pip install 'lightning-mp[search]'`.
        ConfigurationError: A number that must be positive is not.
        DataError: A part is not there, or has no labels.
        ArtifactError: There is no such version of the store.

    Source:
        Ke et al., LightGBM: a highly efficient gradient boosting decision tree, NeurIPS 2017; means of earlier rows:
        Prokhorenkova et al., CatBoost: unbiased boosting with categorical features, NeurIPS 2018, section 3.2.
    """
    for name, value in (
        ("max_rows", max_rows),
        ("rounds", rounds),
        ("patience", patience),
        ("prior", prior),
        ("learning_rate", learning_rate),
    ):
        if not value > 0:
            raise ConfigurationError(f"`{name}` must be above 0, got {value!r}", "leave it out")
    lightgbm = require("lightgbm", "search")
    schema, splits = store.manifest_of(version).schema, store.manifest_of(version).splits
    missing = [name for name in ("train", part) if name not in splits]
    if missing:
        raise DataError(f"the store `{store.path}` has no {missing[0]} part", "change `split`")
    if not 0 <= label < len(schema.labels):
        raise DataError(f"the store `{store.path}` has {len(schema.labels)} labels", "prepare it with a `label`")
    names = list(dict.fromkeys(["train", *(["validation"] if "validation" in splits else []), part]))
    tables = {name: store.load(name, version) for name in names}
    labels = {name: np.ascontiguousarray(table.labels[:, label]) for name, table in tables.items()}
    known = _known(tables, labels, part, prior)
    train = _latest(tables["train"], max_rows)
    options = {
        "objective": "cross_entropy",
        "learning_rate": learning_rate,
        "min_data_in_leaf": 50,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": threads,
        "verbosity": -1,
    }
    categories = [i for i, feature in enumerate(schema.ids) if (feature.vocabulary_size or 0) <= 10_000]

    def data(name: str, rows: Any, reference: Any = None) -> Any:
        table = tables[name]
        return lightgbm.Dataset(
            _matrix(table, known[name], categories, rows),
            label=np.ascontiguousarray(labels[name][rows]),
            weight=None if table.weight is None else np.ascontiguousarray(table.weight[rows]),
            categorical_feature=list(range(len(categories))),
            reference=reference,
            free_raw_data=True,
        )

    fitted = data("train", train)
    if "validation" in tables and part != "validation" and len(tables["validation"]):
        stop = lightgbm.early_stopping(patience, verbose=False)
        checked = data("validation", slice(None), fitted)
        trees = lightgbm.train(options, fitted, rounds, valid_sets=[checked], callbacks=[stop])
    else:
        trees = lightgbm.train(options, fitted, min(rounds, 100))
    scores = np.empty(len(tables[part]))
    for start in range(0, len(scores), 2**18):
        rows = slice(start, start + 2**18)
        scores[rows] = trees.predict(_matrix(tables[part], known[part], categories, rows), num_threads=threads)
    return scores


def _latest(table: FeatureTable, limit: int) -> Any:
    if not len(table):
        raise DataError("there are no training rows to learn from", "change `split`")
    if len(table) <= limit:
        return slice(None)
    return np.sort(np.argsort(table.time, kind="stable")[len(table) - limit :])


def _matrix(table: FeatureTable, known: NDArray[np.float32], categories: list[int], rows: Any) -> NDArray[np.float32]:
    ids, dense = table.ids[rows][:, categories], table.dense[rows]
    return np.concatenate([ids.astype(np.float32), dense.astype(np.float32), known[rows]], axis=1)


def _known(
    tables: dict[str, FeatureTable], labels: dict[str, NDArray[np.float32]], part: str, prior: float
) -> dict[str, NDArray[np.float32]]:
    """Count and mean label of each row's user and item over strictly earlier rows of the parts that are not scored."""
    keys = {name: np.concatenate([getattr(t, name) for t in tables.values()]) for name in ("user", "item", "time")}
    label = np.concatenate(list(labels.values())).astype(np.float64)
    told = np.repeat([float(name != part) for name in tables], [len(table) for table in tables.values()])
    time, columns = keys["time"], []
    count, total = _earlier(np.zeros_like(time), time, label, told)
    everyone = (total + 0.5) / (count + 1)
    for name in ("user", "item"):
        if keys[name].min(initial=0) >= 0:  # a store without keys has -1 for all
            count, total = _earlier(keys[name], time, label, told)
            columns += [count, (total + prior * everyone) / (count + prior)]
    joined = np.stack(columns, axis=1) if columns else np.empty((len(label), 0))
    cuts = np.cumsum([len(table) for table in tables.values()])[:-1]
    return dict(zip(tables, np.split(joined.astype(np.float32), cuts), strict=True))


def _earlier(key: NDArray[np.int64], time: NDArray[np.int64], label: Floats, told: Floats) -> tuple[Floats, Floats]:
    return earlier_sums(key, time, told)[1], earlier_sums(key, time, told * label)[1]
