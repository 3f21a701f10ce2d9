"""`tables/{user,item}.npz`: the latest features of every user and item, for requests that carry keys alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.bundle import TABLES
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.export.missing_fills import MissingFills
from lightning_mp.export.raw_rows import decode_rows
from lightning_mp.schema import Feature, FeatureSchema


def write_tables(folder: Path, store: FeatureStore) -> dict[str, int]:
    """Write what the store's last row of each user and of each item says of them.

    Windowed features cannot be computed inside a graph; these are what a service has until it computes fresher ones.
    Each key carries the time of the row its values come from.

    Args:
        folder: The bundle's folder.
        store: What the model was trained on: all splits are looked through.

    Returns:
        Keys written, by `"user"` and `"item"`: a role whose key is no feature of kind `id`, or that has no other
        feature, is left out.
    """
    written: dict[str, int] = {}
    for role, raw_keys in (("user", store.users()), ("item", store.items())):
        mine = [f for f in store.schema.of_kind("id", "categorical", "numeric") if f.role == role and f.width == 1]
        keys = [feature for feature in mine if feature.kind == "id"]
        if raw_keys is None or len(keys) != 1 or len(mine) < 2:
            continue
        columns = _latest(store, role, mine, keys[0], raw_keys)
        if columns is None:
            continue
        (folder / TABLES).mkdir(exist_ok=True)
        np.savez(folder / TABLES / f"{role}.npz", **columns)  # type: ignore[arg-type]  # names hold a `/`
        written[role] = len(columns["as_of"])
    return written


def _latest(
    store: FeatureStore, role: str, mine: list[Feature], key: Feature, raw_keys: Any
) -> dict[str, NDArray[Any]] | None:
    code: list[NDArray[np.int64]] = []
    time: list[NDArray[np.int64]] = []
    raw: list[dict[str, NDArray[Any]]] = []
    for split in store.manifest.splits:
        table = store.load(split)
        codes, times = np.asarray(table.user if role == "user" else table.item), np.asarray(table.time)
        last = _last_rows(codes, times)
        code.append(codes[last])
        time.append(times[last])
        raw.append(_decoded(store, mine, table.ids[last], table.dense[last]))
    codes, times = np.concatenate(code), np.concatenate(time)
    last = _last_rows(codes, times)
    if not len(last):
        return None
    keys = raw_keys.take(codes[last]).to_numpy(zero_copy_only=False)
    columns: dict[str, NDArray[Any]] = {
        "key": keys.astype(np.str_) if keys.dtype == np.object_ else keys,
        "as_of": times[last],
        "name": np.array(key.name),
    }
    for feature in mine:
        if feature is not key:
            values = np.concatenate([part[feature.name] for part in raw])[last]
            columns[f"value/{feature.name}"] = values.astype(np.str_) if values.dtype == np.object_ else values
    return columns


def _decoded(store: FeatureStore, mine: list[Feature], ids: Any, dense: Any) -> dict[str, NDArray[Any]]:
    """Raw values of the features of one role; the columns of all others are left out first."""
    schema = store.schema
    starts = np.cumsum([0, *(feature.width for feature in schema.dense)])
    indexed = [column for column, feature in enumerate(schema.ids) if feature in mine]
    numbers = [int(start) for start, feature in zip(starts, schema.dense, strict=False) if feature in mine]
    part = FeatureSchema(features=tuple(mine))
    vocabularies = {feature.name: store.vocabulary(feature.name) for feature in part.ids}
    return decode_rows(part, vocabularies, ids[:, indexed], dense[:, numbers], MissingFills.of(store))


def _last_rows(codes: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.intp]:
    """Row of the latest time of each code; of equal times the last one; rows without a code (-1) are left out."""
    order = np.lexsort((times, codes))
    ranked = codes[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True) & (ranked >= 0)) if len(ranked) else order
    return order[last]
