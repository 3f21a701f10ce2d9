"""TabM: an ensemble of multilayer perceptrons that share all but a few weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.feature_embedding import FeatureEmbedding
from lightning_mp.networks.member_heads import MemberHeads
from lightning_mp.networks.member_linear import MemberLinear
from lightning_mp.networks.require_inputs import require_inputs
from lightning_mp.schema import FeatureSchema

# B = batch, X = joined inputs, K = members, H = width of a hidden layer


class TabM(nn.Module):
    """An ensemble of multilayer perceptrons that share all but a few weights, for one logit a row.

    Each layer has one matrix for all members, and for each member a factor on every input and every output and a bias
    of its own; the first layer's input factors begin at random signs, all others at 1, and each member has a head of
    its own. `forward` answers the logit of the members' mean probability. `member_logits` answers each member's own,
    for a loss of each, which the paper trains on: averaged before the loss, members lean on each other.

    Heads and means are float32 under any precision. Against float64, with inputs of unit variance and the default
    sizes, the logit is in float16 and bfloat16 autocast off by at most 1 unit of the format's relative step (2^-10,
    2^-7), relative to the root mean square of the logits plus 1; it stays finite for dense inputs scaled by 1e-3 to
    1e3.

    Args:
        schema: Features of the batches; it gives all input sizes.
        members: Members, K.
        embedding_dim: Width of every embedding table.
        hidden: Widths of the layers.
        dropout: Share of activations dropped in training, in [0, 1).
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
        >>> network = TabM(FeatureSchema(features=(price,)), members=4, hidden=(8,))
        >>> batch = {"dense": torch.tensor([[0.5], [1.5]], dtype=torch.float16)}
        >>> network(batch).shape, network.member_logits(batch).shape
        (torch.Size([2]), torch.Size([2, 4]))

    Source:
        Gorishniy et al., TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling, ICLR 2025,
        section 3.3; the layer of Wen et al., BatchEnsemble, ICLR 2020.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        members: int = 32,
        embedding_dim: int = 16,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        sparse: bool = False,
        fused: bool | None = None,
        max_rows: int | None = None,
    ) -> None:
        super().__init__()
        if members < 1:
            raise ConfigurationError(f"`members` must be at least 1, got {members}", "start with 32")
        if not hidden or any(size < 1 for size in hidden):
            raise ConfigurationError(f"`hidden` must hold widths of at least 1, got {list(hidden)}", "try [256, 128]")
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"`dropout` must be in [0, 1), got {dropout}", "start with 0.1")
        require_inputs(schema, "TabM")
        self.schema = schema
        self.embedding = FeatureEmbedding(
            schema, embedding_dim=embedding_dim, sparse=sparse, fused=fused, max_rows=max_rows
        )
        widths = pairwise([self.embedding.joined_width, *hidden])
        self.layers = nn.ModuleList(
            MemberLinear(a, b, members=members, random_signs=number == 0) for number, (a, b) in enumerate(widths)
        )
        self.dropout = nn.Dropout(dropout)
        self.heads = MemberHeads(hidden[-1], members)

    def member_logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of each member, (B, K) float32."""
        x_BX = self.embedding.join(batch)
        x_BKH = x_BX.unsqueeze(1).expand(-1, self.heads.members, -1)
        for layer in self.layers:
            x_BKH = self.dropout(torch.relu(layer(x_BKH)))
        logits: Tensor = self.heads(x_BKH)
        return logits

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of the members' mean probability.

        Args:
            batch: `ids` (B, F) and `multi` (B, M, L) int32 or int64, `dense` (B, D) floating, as far as the schema has
                them.

        Returns:
            Shape (B,), float32.
        """
        logits_BK = self.member_logits(batch)
        # log p - log(1 - p) of the mean p; both in logarithms, so that no probability rounds to 0 or 1.
        return torch.logsumexp(logsigmoid(logits_BK), dim=1) - torch.logsumexp(logsigmoid(-logits_BK), dim=1)
