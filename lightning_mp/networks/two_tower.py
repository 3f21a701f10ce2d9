"""TwoTower: users and items as vectors whose product is the logit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.feature_embedding import FeatureEmbedding
from lightning_mp.networks.mlp import MLP
from lightning_mp.networks.require_inputs import require_inputs
from lightning_mp.networks.scaled_linear import widened
from lightning_mp.schema import FeatureSchema, Role

# B = batch, E = width of the vectors

_LEAST_NORM: Final = 2.0**-14
"""Vectors shorter than this are not stretched to length 1: float16's smallest normal number."""


class TwoTower(nn.Module):
    """Users and items as vectors of one space; the logit is their product over a temperature.

    The user's tower takes the features of roles `user` and `context`, the item's those of role `item`, so that either
    can be computed alone: `item_vectors` of all items once, `user_vectors` at the request. Lengths, products and
    logits are float32 under any precision. Against float64, with inputs of unit variance and the default sizes, the
    logit is in float16 and bfloat16 autocast off by at most 4 units of the format's relative step (2^-10, 2^-7) over
    the temperature; it stays finite for dense inputs scaled by 1e-3 to 1e3.

    Args:
        schema: Features of the batches; it gives all input sizes.
        embedding_dim: Width of every embedding table.
        hidden: Widths of the deep layers of each tower; empty for one linear layer.
        output_dim: Width E of the vectors.
        temperature: What products are divided by, above 0; small ones sharpen a softmax over items.
        normalize: Stretch vectors to length 1, so that the product is a cosine.
        dropout: Share of deep activations dropped in training, in [0, 1).
        sparse: Give the embeddings sparse gradients; see `FeatureEmbedding`.
        fused: Keep the embeddings of each tower in one table; left out, it is so with `sparse`.
        max_rows: Most rows of an embedding; larger vocabularies are hashed.

    Raises:
        ConfigurationError: A tower has no input, or a sequence; a size makes no sense; or (on use) a batch has other
            columns than the schema.
        DataError: On use: an id is outside its table; see `FeatureEmbedding`.

    Example:
        >>> from lightning_mp.schema import Feature
        >>> user, item = (Feature(name=role, kind="id", role=role, source_dtype="string", stored_dtype="int32",
        ...                       vocabulary_size=10) for role in ("user", "item"))
        >>> network = TwoTower(FeatureSchema(features=(user, item)), output_dim=4, temperature=0.05)
        >>> batch = {"ids": torch.tensor([[3, 5], [1, 2]])}
        >>> network(batch).shape, network.item_vectors(batch).shape
        (torch.Size([2]), torch.Size([2, 4]))

    Source:
        Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations, RecSys 2019,
        section 3.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        embedding_dim: int = 32,
        hidden: Sequence[int] = (128,),
        output_dim: int = 32,
        temperature: float = 0.1,
        normalize: bool = True,
        dropout: float = 0.0,
        sparse: bool = False,
        fused: bool | None = None,
        max_rows: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ConfigurationError(f"`temperature` must be above 0, got {temperature!r}", "start with 0.1")
        if output_dim < 1:
            raise ConfigurationError(f"`output_dim` must be at least 1, got {output_dim}", "start with 32")
        self.schema = schema
        self.temperature = temperature
        self.normalize = normalize

        def tower(*roles: Role) -> _Tower:
            require_inputs(schema, "TwoTower", roles=roles)
            embedding = FeatureEmbedding(
                schema, embedding_dim=embedding_dim, roles=roles, sparse=sparse, fused=fused, max_rows=max_rows
            )
            return _Tower(embedding, MLP(embedding.joined_width, hidden=hidden, dropout=dropout), output_dim)

        self.user = tower("user", "context")
        self.item = tower("item")

    def user_vectors(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Vectors of the users of a batch, in its contexts, (B, E) float32; columns of items are not looked at."""
        return self._stretched(self.user(batch))

    def item_vectors(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Vectors of the items of a batch, (B, E) float32; columns of users and contexts are not looked at."""
        return self._stretched(self.item(batch))

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of each row's own user and item.

        Args:
            batch: `ids` (B, F) and `multi` (B, M, L) int32 or int64, `dense` (B, D) floating, as far as the schema has
                them.

        Returns:
            Shape (B,), float32.
        """
        return (self.user_vectors(batch) * self.item_vectors(batch)).sum(dim=1) / self.temperature

    def _stretched(self, x_BE: Tensor) -> Tensor:
        if not self.normalize:
            return x_BE
        length_B1: Tensor = torch.linalg.vector_norm(x_BE, dim=1, keepdim=True)
        return x_BE / length_B1.clamp(min=_LEAST_NORM)


class _Tower(nn.Module):
    def __init__(self, embedding: FeatureEmbedding, deep: MLP, output_dim: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.deep = deep
        self.out = nn.Linear(deep.width_out, output_dim)

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        hidden_BH = self.deep(self.embedding.join(batch))
        return widened(self.out(hidden_BH.to(self.out.weight.dtype)))
