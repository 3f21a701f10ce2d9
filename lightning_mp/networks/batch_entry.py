"""One tensor of a batch, or an error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import Feature

# B = batch; N = columns of the tensor


def batch_entry(batch: Mapping[str, Tensor], name: str, *, columns: int | None = None, of: str = "columns") -> Tensor:
    """The tensor `name` of a batch.

    Args:
        batch: As a data module gives it.
        name: Such as `"ids"`.
        columns: Size that its second axis must have; left out, any.
        of: What the schema has as many of.

    Raises:
        ConfigurationError: The batch has none of that name, or one of another width.

    Example:
        >>> batch_entry({"dense": torch.zeros(2, 3)}, "dense", columns=3).shape
        torch.Size([2, 3])
    """
    if name not in batch:
        there = ", ".join(f"`{key}`" for key in batch) or "nothing"
        raise ConfigurationError(f"the batch has no `{name}`; it has {there}", "use `RankingDataModule`, or add it")
    entry = batch[name]
    if columns is not None and (entry.dim() < 2 or entry.shape[1] != columns):
        there = f"{entry.shape[1]} columns" if entry.dim() > 1 else f"shape {tuple(entry.shape)}"
        raise ConfigurationError(
            f"`{name}` has {there}, the schema has {columns} {of}".removesuffix(" columns"),
            "give batches of a store with the schema that the network was built with",
        )
    return entry


def checked_ids(ids: Tensor, features: Sequence[Feature], *, name: str) -> Tensor:
    """`ids` as they are, if they are whole numbers of their vocabularies.

    In eager mode on a CPU every id is looked at. A compiled or exported graph holds no such check, and on a GPU it
    would make the host wait in every batch.

    Args:
        ids: (B,) or (B, N, ...), whole numbers.
        features: Whose ids stand in each of the N columns; one feature for all where there is one.
        name: Of the tensor in the batch, such as `"ids"`.

    Raises:
        DataError: They are floating-point, or one is negative or beyond its vocabulary; it is named.
    """
    if ids.is_floating_point():
        raise DataError(
            f"`{name}` is {str(ids.dtype).removeprefix('torch.')}, ids must be int32 or int64",
            "keep ids out of floating-point columns, which lose whole numbers without a word",
        )
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return ids
    sizes_N = torch.tensor([feature.vocabulary_size or 0 for feature in features], dtype=ids.dtype)
    outside = (ids < 0) | (ids >= (sizes_N if ids.dim() < 3 else sizes_N.view(-1, *[1] * (ids.dim() - 2))))
    if outside.any():
        place = tuple(int(i) for i in outside.nonzero()[0])
        feature = features[place[1] if len(features) > 1 else 0]
        size = feature.vocabulary_size or 0
        raise DataError(
            f"feature `{feature.name}` has id {int(ids[place]):,} at row {place[0]:,} of the batch, "
            f"its table has {size:,} rows (0 to {size - 1:,})",
            "encode it with the vocabulary that the network was built with; unknown values are 0",
        )
    return ids
