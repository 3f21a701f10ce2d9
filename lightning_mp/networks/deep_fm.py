"""DeepFM: a factorization machine beside a deep network, on the same embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.batch_entry import batch_entry
from lightning_mp.networks.feature_embedding import FeatureEmbedding
from lightning_mp.networks.float32_linear import float32_linear
from lightning_mp.networks.logit_head import LogitHead
from lightning_mp.networks.mlp import MLP
from lightning_mp.networks.require_inputs import require_inputs
from lightning_mp.networks.scaled_linear import widened
from lightning_mp.schema import FeatureSchema

# B = batch, F = indexed and list features, D = dense columns, E = embedding width; C = E + 1, as the embedding's last
# column is the first-order weight


class DeepFM(nn.Module):
    """A factorization machine beside a deep network, on the same embeddings, for one logit a row.

    The machine adds up a weight of every value and the product of the embeddings of every two; a number x_j takes part
    with its weight and its embedding times x_j. Weight and embedding of an indexed value stand in one row of a table,
    so that one lookup finds both. The deep network has embeddings and numbers side by side. Sums and products of the
    machine, and the last layer, are float32 under any precision. Against float64, with inputs of unit variance and the
    default sizes, the logit is in float16 and bfloat16 autocast off by at most 1 unit of the format's relative step
    (2^-10, 2^-7), relative to the root mean square of the logits plus 1; it stays finite for dense inputs scaled by
    1e-3 to 1e3.

    Args:
        schema: Features of the batches; it gives all input sizes.
        embedding_dim: Width E of the embeddings.
        hidden: Widths of the deep layers; empty leaves the machine alone.
        dropout: Share of deep activations dropped in training, in [0, 1).
        sparse: Give the embeddings sparse gradients; see `FeatureEmbedding`.
        fused: Keep all embeddings in one table; left out, it is so with `sparse`.
        max_rows: Most rows of an embedding; larger vocabularies are hashed.

    Raises:
        ConfigurationError: The schema has no input or a sequence, a size makes no sense, or (on use) a batch has other
            columns than the schema.
        DataError: On use: an id is outside its table; see `FeatureEmbedding`.

    Example:
        >>> from lightning_mp.schema import Feature
        >>> price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16")
        >>> network = DeepFM(FeatureSchema(features=(price,)), hidden=(8,))
        >>> network({"dense": torch.tensor([[0.5], [1.5]], dtype=torch.float16)}).shape
        torch.Size([2])

    Source:
        Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, IJCAI 2017, equations 1 to
        4; the sum over pairs in linear time as in Rendle, Factorization Machines, ICDM 2010, lemma 3.1.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        embedding_dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        sparse: bool = False,
        fused: bool | None = None,
        max_rows: int | None = None,
    ) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ConfigurationError(f"`embedding_dim` must be at least 1, got {embedding_dim}", "start with 16")
        require_inputs(schema, "DeepFM")
        self.schema = schema
        self.embedding = FeatureEmbedding(
            schema, embedding_dim=embedding_dim + 1, sparse=sparse, fused=fused, max_rows=max_rows
        )
        self.fields = len(self.embedding.features) + len(self.embedding.lists)
        width = self.fields * embedding_dim + schema.dense_width
        self.deep = MLP(width, hidden=hidden, dropout=dropout) if hidden else None
        self.head = LogitHead(self.deep.width_out) if self.deep else None
        self.numbers = nn.Parameter(torch.randn(embedding_dim + 1, schema.dense_width) * 0.01)
        self.bias = nn.Parameter(torch.zeros(()))

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of a batch.

        Args:
            batch: `ids` (B, F) and `multi` (B, M, L) int32 or int64, `dense` (B, D) floating, as far as the schema has
                them.

        Returns:
            Shape (B,), float32.
        """
        sums_BE, squares_B, weights_B, deep_BX = [], [], [], []
        if self.fields:
            rows_BFC = self._rows(batch)
            vectors_BFE, own_BF1 = torch.split(rows_BFC, [rows_BFC.shape[2] - 1, 1], dim=2)
            sums_BE.append(vectors_BFE.sum(dim=1))
            squares_B.append(vectors_BFE.square().sum(dim=(1, 2)))
            weights_B.append(own_BF1.sum(dim=(1, 2)))
            deep_BX.append(vectors_BFE.flatten(1))
        if self.schema.dense_width:
            dense_BD = self.embedding.numbers(batch)
            sum_BC, lengths_1D = (
                float32_linear(dense_BD, self.numbers),
                widened(self.numbers)[:-1].square().sum(0, True),
            )
            sums_BE.append(sum_BC[:, :-1])
            squares_B.append(float32_linear(dense_BD.square(), lengths_1D).squeeze(1))
            weights_B.append(sum_BC[:, -1])
            deep_BX.append(dense_BD)
        # Over all pairs: half of the square of the sum less the sum of the squares.
        pairs_B = 0.5 * (torch.stack(sums_BE).sum(dim=0).square().sum(dim=1) - torch.stack(squares_B).sum(dim=0))
        logits: Tensor = widened(self.bias) + torch.stack(weights_B).sum(dim=0) + pairs_B
        if self.deep is None or self.head is None:
            return logits
        deep_B1: Tensor = self.head(self.deep(torch.cat(deep_BX, dim=1)))
        return logits + deep_B1.squeeze(1)

    def _rows(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Embeddings with their weights, (B, F, E + 1) float32."""
        ids = batch_entry(batch, "ids") if self.embedding.features else None
        rows = self.embedding(ids, batch_entry(batch, "multi") if self.embedding.lists else None)
        return widened(rows).view(len(rows), self.fields, self.embedding.embedding_dim)
