"""Scores of all items for users, as they stand when a part of a store begins to be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_mp.data.item_catalogue import ItemCatalogue
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.models.ranked_items import only_present
from lightning_mp.networks.batch_lists import batch_lists

Ints = npt.NDArray[np.int64]
Scorer = Callable[[Ints], npt.NDArray[np.float32]]
_ROWS: Final = 8192


def list_scorer(
    store: FeatureStore,
    part: str,
    version: int | None,
    *,
    vectors: Callable[[dict[str, Tensor]], Tensor],
    items: Tensor,
    candidates: npt.NDArray[np.bool_],
    device: torch.device,
) -> Scorer:
    """A function from codes of users (u,) to their scores of all items, (u, C) float32.

    A user is asked as its first row of the part shows it: features, context and history of that moment.

    Args:
        store: Its rows know their users.
        part: `"validation"` or `"test"`.
        version: Of the store.
        vectors: Gives (B, E) of a batch of rows.
        items: (C, E), of all items of the store.
        candidates: (C,) which of them may be in a list; the others come last.
        device: Of the network.
    """
    table = store.load(part, version)
    order = np.lexsort((table.row, table.time))
    codes, first = np.unique(table.user[order], return_index=True)
    rows = order[first]
    widths = [feature.width for feature in table.schema.of_kind("multi_categorical")]
    columns = {"ids": table.ids, "multi": table.group("multi"), "history": table.history, "dense": table.dense}

    def batches() -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            batch = {name: torch.from_numpy(m[some]) for name, m in columns.items() if m.shape[1]}
            if widths:
                batch["multi"] = batch_lists(batch["multi"], widths)
            yield {name: tensor.to(device) for name, tensor in batch.items()}

    with torch.no_grad():
        users = torch.cat([vectors(batch).float() for batch in batches()]).cpu().numpy()
    products = items.detach().float().cpu().numpy().T

    def score(asked: Ints) -> npt.NDArray[np.float32]:
        place = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
        known = (codes[place] == asked)[:, None]
        return only_present(np.where(known, users[place] @ products, np.float32(0)), candidates)

    return score


def users_of(store: FeatureStore, part: str, version: int | None) -> Ints:
    """Codes of the users of a part, (U,)."""
    return np.asarray(np.unique(store.load(part, version).user), dtype=np.int64)


def known_items(catalogue: ItemCatalogue, *, cold: bool) -> npt.NDArray[np.bool_]:
    """Items of a catalogue that have a vector of their own, or, with `cold`, that of their likes."""
    return catalogue.present & ((catalogue.row > 0) | cold)
