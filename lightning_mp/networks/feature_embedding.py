"""FeatureEmbedding: one learned table an indexed feature."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import Feature, FeatureSchema

# B = batch, F = indexed features, E = embedding width


class FeatureEmbedding(nn.Module):
    """One learned table an indexed feature, looked up and laid side by side.

    Row 0 of each table stands for values that the vocabulary does not know. It starts at zero, so that a value never
    seen in training says nothing, and is trained like any other row where missing values occur. The tables stay
    apart: with dense gradients many small ones are faster on a CPU than one large one.

    Args:
        schema: Its indexed features make the tables, in the order of the columns of `ids`.
        embedding_dim: Width E of every table.

    Raises:
        ConfigurationError: `embedding_dim` is below 1, or (on use) `ids` has another number of columns.
        DataError: On use: an id is negative or beyond its table. Found without a look at every batch, from the error
            of the lookup itself, in eager mode on a CPU; a compiled graph and a GPU stop with their own error.

    Example:
        >>> user = Feature(name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32",
        ...                vocabulary_size=11)
        >>> embedding = FeatureEmbedding(FeatureSchema(features=(user,)), embedding_dim=4)
        >>> embedding(torch.tensor([[3], [0]])).shape
        torch.Size([2, 4])
    """

    def __init__(self, schema: FeatureSchema, *, embedding_dim: int = 16) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ConfigurationError(f"`embedding_dim` must be at least 1, got {embedding_dim}", "start with 16")
        self.features = schema.ids
        self.embedding_dim = embedding_dim
        self.tables = nn.ModuleList(nn.Embedding(_size(feature), embedding_dim) for feature in self.features)
        self.reset_parameters()

    @property
    def width(self) -> int:
        """Columns of the output, F * E."""
        return len(self.features) * self.embedding_dim

    def reset_parameters(self) -> None:
        """Draw the tables anew: normal with a standard deviation of 0.01, row 0 zero."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.01)
                parameter[0].zero_()

    @override
    def forward(self, ids_BF: Tensor) -> Tensor:
        """Look up `ids`, (B, F) int32 or int64.

        Returns:
            Shape (B, F * E), the tables' dtype.
        """
        if ids_BF.shape[1] != len(self.features):
            raise ConfigurationError(
                f"`ids` has {ids_BF.shape[1]} columns, the schema has {len(self.features)} indexed features",
                "give batches of a store with the schema that the network was built with",
            )
        if torch.compiler.is_compiling():
            return self._look_up(ids_BF)
        try:
            return self._look_up(ids_BF)
        except IndexError as error:
            raise self._out_of_range(ids_BF) from error

    def _look_up(self, ids_BF: Tensor) -> Tensor:
        columns = ids_BF.unbind(1)
        return torch.cat([table(ids_B) for table, ids_B in zip(self.tables, columns, strict=True)], dim=1)

    def _out_of_range(self, ids_BF: Tensor) -> DataError:
        limits_F = torch.tensor([_size(feature) for feature in self.features])
        row, column = (int(i) for i in ((ids_BF < 0) | (ids_BF >= limits_F)).nonzero()[0])
        feature = self.features[column]
        return DataError(
            f"feature `{feature.name}` has id {int(ids_BF[row, column]):,} at row {row:,} of the batch, "
            f"its table has {_size(feature):,} rows (0 to {_size(feature) - 1:,})",
            "encode it with the vocabulary that the network was built with; unknown values are 0",
        )


def _size(feature: Feature) -> int:
    return feature.vocabulary_size or 0
