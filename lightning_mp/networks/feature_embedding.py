"""FeatureEmbedding: a learned row for every value of the indexed features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.batch_entry import batch_entry, checked_ids
from lightning_mp.networks.scaled_linear import widened
from lightning_mp.schema import Feature, FeatureSchema, Role

# B = batch, F = indexed features, M = list features, L = longest list, E = embedding width, D = dense columns, all
# of the roles taken, X = (F + M) * E + D

_FACTOR, _PRIME = 506_952_114, 2**31 - 1
"""Of the hash: Knuth's 2,654,435,761 modulo a Mersenne prime, so that no product leaves 62 bits."""


class FeatureEmbedding(nn.Module):
    """A learned row for every value of the indexed features, looked up and laid side by side.

    Row 0 of each table stands for values that the vocabulary does not know. It starts at zero, so that a value never
    seen in training says nothing, and is trained like any other row where missing values occur. A list feature
    (`multi_categorical`) is the mean of its entries' rows, 0 left out, and zero for an empty list: a gather and a
    mask, which every runtime takes.

    With dense gradients each feature has a table of its own, which is faster on a CPU than one large table. With
    `sparse` all share one, whose gradient holds the rows of the batch and no others: `RowWiseAdagrad`, `SparseAdam`
    and `SGD` take it, `Adam` does not. A checkpoint of either form loads into the other.

    Args:
        schema: Its indexed features, then its lists, make the tables, in the order of their columns.
        embedding_dim: Width E of every table.
        roles: Take only features of these roles, such as `("user", "context")`; columns of others are passed over.
        sparse: Give sparse gradients.
        fused: Keep all rows in one table; left out, it is so with `sparse`.
        max_rows: Most rows of a table. The values of a larger vocabulary are hashed into rows 1 to `max_rows - 1`;
            row 0 stays that of unknown ones.

    Attributes:
        features: The indexed features taken.
        lists: The list features taken.
        dense_width: Dense columns taken, D.

    Raises:
        ConfigurationError: A size is too small, or (on use) a batch has other columns than the schema.
        DataError: On use: ids are floating-point, negative or beyond their vocabulary. Looked for in eager mode on a
            CPU; elsewhere the lookup stops with its own error, or reads another feature's row where all share a table.

    Example:
        >>> user = Feature(name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32",
        ...                vocabulary_size=11)
        >>> embedding = FeatureEmbedding(FeatureSchema(features=(user,)), embedding_dim=4)
        >>> embedding(torch.tensor([[3], [0]])).shape
        torch.Size([2, 4])
    """

    offsets: Tensor
    moduli: Tensor

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        embedding_dim: int = 16,
        roles: Sequence[Role] | None = None,
        sparse: bool = False,
        fused: bool | None = None,
        max_rows: int | None = None,
    ) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ConfigurationError(f"`embedding_dim` must be at least 1, got {embedding_dim}", "start with 16")
        if max_rows is not None and max_rows < 2:
            raise ConfigurationError(f"`max_rows` must be at least 2, got {max_rows}", "leave it out for whole tables")
        self.schema = schema
        self.embedding_dim = embedding_dim
        self.features, self._id_columns = _taken(schema.ids, roles)
        self.lists, self._list_columns = _taken(schema.of_kind("multi_categorical"), roles)
        numbers, columns = _taken(schema.dense, roles)
        self._dense_columns = _wide(schema.dense, columns)
        self.dense_width = sum(feature.width for feature in numbers)
        vocabularies = [feature.vocabulary_size or 0 for feature in (*self.features, *self.lists)]
        rows = [size if max_rows is None else min(size, max_rows) for size in vocabularies]
        self._starts = [0, *accumulate(rows)]
        self.register_buffer("offsets", torch.tensor(self._starts[:-1], dtype=torch.int64), persistent=False)
        # Rows that values are hashed into, and 0 where each has its own.
        moduli = [0 if size == whole else size - 1 for size, whole in zip(rows, vocabularies, strict=True)]
        self.register_buffer("moduli", torch.tensor(moduli, dtype=torch.int64), persistent=False)
        self.hashed = any(moduli)
        self.fused = (sparse if fused is None else fused) and bool(rows)
        if self.fused:
            self.table = nn.Embedding(self._starts[-1], embedding_dim, sparse=sparse)
        else:
            self.tables = nn.ModuleList(nn.Embedding(size, embedding_dim, sparse=sparse) for size in rows)
        self.register_load_state_dict_pre_hook(_in_this_form)  # type: ignore[no-untyped-call]  # torch says no types
        self.reset_parameters()

    @property
    def width(self) -> int:
        """Columns of the output, (F + M) * E."""
        return (len(self.features) + len(self.lists)) * self.embedding_dim

    @property
    def joined_width(self) -> int:
        """Columns of what `join` gives, X."""
        return self.width + self.dense_width

    def reset_parameters(self) -> None:
        """Draw the tables anew: normal with a standard deviation of 0.01, row 0 of each zero."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.01)
                parameter[self.offsets if self.fused else 0] = 0.0

    @override
    def forward(self, ids_BF: Tensor | None = None, multi_BML: Tensor | None = None) -> Tensor:
        """Look up `ids` (B, F) and `multi` (B, M, L), int32 or int64, each as far as the schema has such features.

        Returns:
            Shape (B, (F + M) * E), the tables' dtype.
        """
        batch = {name: ids for name, ids in (("ids", ids_BF), ("multi", multi_BML)) if ids is not None}
        parts = []
        if self.features:
            ids = batch_entry(batch, "ids", columns=len(self.schema.ids), of="indexed features")
            parts.append(self._look_up(_columns(ids, self._id_columns), "ids").flatten(1))
        if self.lists:
            every = len(self.schema.of_kind("multi_categorical"))
            lists = _columns(batch_entry(batch, "multi", columns=every, of="list features"), self._list_columns)
            parts.append(_mean(self._look_up(lists, "multi"), lists != 0).flatten(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def join(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Embeddings and dense numbers side by side.

        Args:
            batch: `ids` (B, F), `multi` (B, M, L) and `dense` (B, D), as far as the schema has them.

        Returns:
            Shape (B, X), float32.
        """
        parts = []
        if self.width:
            ids = batch_entry(batch, "ids") if self.features else None
            parts.append(widened(self(ids, batch_entry(batch, "multi") if self.lists else None)))
        if self.dense_width:
            parts.append(self.numbers(batch))
        return torch.cat(parts, dim=1)

    def numbers(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The dense numbers taken of a batch, (B, D) float32."""
        return widened(_columns(batch_entry(batch, "dense", columns=self.schema.dense_width), self._dense_columns))

    def _look_up(self, ids_BN: Tensor, name: str) -> Tensor:
        """Rows of ids (B, N, ...): (B, N, ..., E)."""
        first, features = (0, self.features) if name == "ids" else (len(self.features), self.lists)
        ids_BN = checked_ids(ids_BN, features, name=name)
        shape = [len(features)] + [1] * (ids_BN.dim() - 2)
        if self.hashed:
            moduli = self.moduli.narrow(0, first, len(features)).view(shape)
            hashed = 1 + (ids_BN.long() * _FACTOR % _PRIME) % moduli.clamp(min=1)
            ids_BN = torch.where((moduli > 0) & (ids_BN > 0), hashed, ids_BN)
        if self.fused:
            rows: Tensor = self.table(ids_BN + self.offsets.narrow(0, first, len(features)).view(shape))
            return rows
        tables = list(self.tables)[first : first + len(features)]
        return torch.stack([table(ids) for table, ids in zip(tables, ids_BN.unbind(1), strict=True)], dim=1)


def _mean(rows_BMLE: Tensor, known_BML: Tensor) -> Tensor:
    """Mean of the known rows, summed in float32: a sum may leave float16 where the mean does not."""
    sum_BME = (widened(rows_BMLE) * known_BML.unsqueeze(3)).sum(2)
    return (sum_BME / known_BML.sum(2, keepdim=True).clamp(min=1)).to(rows_BMLE.dtype)


def _taken(features: Sequence[Feature], roles: Sequence[Role] | None) -> tuple[tuple[Feature, ...], list[int] | None]:
    """Features of the roles, and their places; `None` for all of them."""
    places = [i for i, feature in enumerate(features) if roles is None or feature.role in roles]
    return tuple(features[i] for i in places), None if len(places) == len(features) else places


def _wide(features: Sequence[Feature], places: list[int] | None) -> list[int] | None:
    starts = [0, *accumulate(feature.width for feature in features)]
    return None if places is None else [c for i in places for c in range(starts[i], starts[i + 1])]


def _columns(x: Tensor, columns: list[int] | None) -> Tensor:
    return x if columns is None else x[:, columns]


def _in_this_form(module: FeatureEmbedding, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Make one table of a checkpoint's many, or many of its one, as this module keeps them."""
    count = len(module.features) + len(module.lists)
    one, many = f"{prefix}table.weight", [f"{prefix}tables.{i}.weight" for i in range(count)]
    if module.fused and all(name in state for name in many):
        state[one] = torch.cat([state.pop(name) for name in many])
    elif not module.fused and one in state and len(state[one]) == module._starts[-1]:  # noqa: SLF001  its own file
        table = state.pop(one)
        parts = table.split([module.tables[i].num_embeddings for i in range(count)])
        state.update({name: part.clone() for name, part in zip(many, parts, strict=True)})
