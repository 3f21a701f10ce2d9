"""DCNv2: explicit crosses beside a deep network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.networks.cross_network import CrossNetwork
from lightning_mp.networks.feature_embedding import FeatureEmbedding
from lightning_mp.networks.logit_head import LogitHead
from lightning_mp.networks.mlp import MLP
from lightning_mp.networks.require_inputs import require_inputs
from lightning_mp.networks.scaled_linear import widened
from lightning_mp.schema import FeatureSchema

# B = batch, F = indexed features, M = list features, L = longest list, D = dense columns, joined inputs
# X = (F + M) * embedding_dim + D, H = width of the last hidden layer


class DCNv2(nn.Module):
    """Explicit crosses beside a deep network, the paper's parallel structure, for one logit a row.

    Embeddings and dense numbers, side by side, go through `CrossNetwork` and through `MLP`; one linear layer over both
    outputs gives the logit. Under float16 and bfloat16 autocast the matrix products of both run in half precision, the
    crosses' state and the last layer in float32. Against float64, with inputs of unit variance and the default sizes,
    the logit is then off by at most 4 units of the format's relative step (2^-10, 2^-7), relative to the root mean
    square of the logits plus 1; it stays finite for dense inputs scaled by 1e-3 to 1e3.

    Args:
        schema: Features of the batches; it gives all input sizes.
        embedding_dim: Width of every embedding table.
        cross_layers: Cross layers; the logit holds products of up to `cross_layers + 1` inputs.
        rank: Inner width of the cross layers' matrices; `None` keeps full ones.
        hidden: Widths of the deep layers.
        dropout: Share of deep activations dropped in training, in [0, 1).
        sparse: Give the embeddings sparse gradients; see `FeatureEmbedding`.
        fused: Keep all embeddings in one table; left out, it is so with `sparse`.
        max_rows: Most rows of an embedding; larger vocabularies are hashed.

    Raises:
        ConfigurationError: The schema has no input, or a sequence, which this network does not take, a
            size makes no sense, or (on use) a batch has other columns than the schema.
        DataError: On use: an id is outside its table; see `FeatureEmbedding`.

    Example:
        >>> from lightning_mp.schema import Feature
        >>> price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16")
        >>> network = DCNv2(FeatureSchema(features=(price,)), hidden=(8,))
        >>> network({"dense": torch.tensor([[0.5], [1.5]], dtype=torch.float16)}).shape
        torch.Size([2])

    Source:
        Wang et al., DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
        Systems, WWW 2021, section 3; arXiv:2008.13535.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        embedding_dim: int = 16,
        cross_layers: int = 2,
        rank: int | None = None,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        sparse: bool = False,
        fused: bool | None = None,
        max_rows: int | None = None,
    ) -> None:
        super().__init__()
        require_inputs(schema, "DCNv2")
        self.schema = schema
        self.embedding = FeatureEmbedding(
            schema, embedding_dim=embedding_dim, sparse=sparse, fused=fused, max_rows=max_rows
        )
        width = self.embedding.joined_width
        self.cross = CrossNetwork(width, layers=cross_layers, rank=rank)
        self.deep = MLP(width, hidden=hidden, dropout=dropout) if hidden else None
        self.head = LogitHead(width + (self.deep.width_out if self.deep else 0))

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of a batch.

        Args:
            batch: `ids` (B, F) and `multi` (B, M, L) int32 or int64, `dense` (B, D) floating, as far as the schema has
                them.

        Returns:
            Shape (B,), float32.
        """
        x_BX = self.embedding.join(batch)
        parts = [self.cross(x_BX)]
        if self.deep is not None:
            parts.append(widened(self.deep(x_BX)))
        logits: Tensor = self.head(torch.cat(parts, dim=1))
        return logits.squeeze(1)
