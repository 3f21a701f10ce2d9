"""SASRec: the next item from those before it, by self-attention."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.batch_entry import batch_entry, checked_ids
from lightning_mp.networks.causal_attention import CausalAttention
from lightning_mp.networks.float32_layer_norm import Float32LayerNorm
from lightning_mp.networks.scaled_linear import widened
from lightning_mp.schema import Feature, FeatureSchema

# B = batch, L = length of a history, E = embedding width, V = items with row 0


class SASRec(nn.Module):
    """The next item from those before it, by self-attention over their embeddings and places.

    A history holds item ids, oldest first, and 0 where there is none: usually at its front, so that the newest item
    stands last, though any place will do. Of a longer one the newest `max_length` count. Embeddings serve as input and
    as output, so an item's logit is the product of its embedding with the state after the history; id 0, padding and
    unknown item alike, has a logit of 0, as has every item after an empty history.

    Sums, normalisations, softmax and logits are float32 under any precision. Against float64, with embeddings of unit
    length and the default sizes, the logit is in float16 and bfloat16 autocast off by at most 4 units of the format's
    relative step (2^-10, 2^-7), relative to the root mean square of the logits plus 1. Normalised inputs make it
    finite for embeddings scaled by 1e-3 to 1e3.

    Args:
        schema: Its one feature of kind `id` and role `item` gives the items.
        max_length: Places with an embedding of their own, the longest history looked at.
        embedding_dim: Width E.
        blocks: Layers of attention and feed-forward.
        heads: Heads of each attention; must divide E.
        dropout: Share dropped in training, in [0, 1).
        sparse: Give the items' embeddings sparse gradients; see `FeatureEmbedding`.

    Raises:
        ConfigurationError: The schema has no such feature or several, a size makes no sense, or (on use) the batch
            has no `history`.
        DataError: On use: an id is floating-point, negative or beyond the vocabulary, in eager mode on a CPU.

    Example:
        >>> item = Feature(name="item", kind="id", role="item", source_dtype="string", stored_dtype="int32",
        ...                vocabulary_size=10)
        >>> network = SASRec(FeatureSchema(features=(item,)), max_length=4, embedding_dim=8)
        >>> history = torch.tensor([[0, 0, 3], [1, 2, 5]])
        >>> network({"history": history, "target": torch.tensor([4, 9])}).shape, network.encode(history).shape
        (torch.Size([2]), torch.Size([2, 3, 8]))

    Source:
        Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018, sections III.A to III.D.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        max_length: int = 50,
        embedding_dim: int = 64,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.2,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"max_length": max_length, "embedding_dim": embedding_dim, "blocks": blocks}.items():
            if value < 1:
                raise ConfigurationError(f"`{name}` must be at least 1, got {value}", "leave it out")
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"`dropout` must be in [0, 1), got {dropout}", "start with 0.2")
        self.schema = schema
        self.item = _item_feature(schema)
        self.max_length = max_length
        self.items = nn.Embedding(self.item.vocabulary_size or 0, embedding_dim, padding_idx=0, sparse=sparse)
        self.places = nn.Embedding(max_length, embedding_dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(embedding_dim, heads, dropout) for _ in range(blocks))
        self.norm = Float32LayerNorm(embedding_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew: normal, of expected length 1, row 0 of the items zero."""
        std = self.items.embedding_dim**-0.5
        with torch.no_grad():
            self.items.weight.normal_(std=std)[0] = 0.0
            self.places.weight.normal_(std=std)

    def encode(self, history_BL: Tensor) -> Tensor:
        """State after each place of the histories.

        Args:
            history_BL: Item ids, (B, L) int32 or int64, oldest first, 0 for none.

        Returns:
            Shape (B, min(L, max_length), E), float32; zero at padding.
        """
        history_BL = checked_ids(history_BL, [self.item], name="history")[:, -self.max_length :]
        known_BL = history_BL != 0
        known_BL1 = known_BL.unsqueeze(2)
        length = history_BL.shape[1]
        places_LE = widened(self.places.weight)[self.max_length - length :]
        x_BLE = self.dropout(widened(self.items(history_BL)) + places_LE) * known_BL1
        for block in self.blocks:
            x_BLE = block(x_BLE, known_BL) * known_BL1
        states: Tensor = self.norm(x_BLE) * known_BL1
        return states

    def item_vectors(self) -> Tensor:
        """Vectors of all items, (V, E) float32; row 0 is zero. A logit is a state's product with one of them."""
        return widened(self.items.weight)

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of one item after each history.

        Args:
            batch: `history` (B, L) and `target` (B,), int32 or int64.

        Returns:
            Shape (B,), float32.
        """
        states_BLE = self.encode(batch_entry(batch, "history"))
        target_B = checked_ids(batch_entry(batch, "target"), [self.item], name="target")
        vectors_BE = widened(self.items(target_B))
        logits: Tensor = (self._last(states_BLE, batch["history"]) * vectors_BE).sum(dim=1)
        return logits

    def _last(self, states_BLE: Tensor, history_BL: Tensor) -> Tensor:
        """The state at the newest item, (B, E)."""
        length = states_BLE.shape[1]
        places_L = torch.arange(length, device=states_BLE.device)
        newest_B = (places_L * (history_BL[:, -length:] != 0)).amax(dim=1)
        return states_BLE.gather(1, newest_B.view(-1, 1, 1).expand(-1, 1, states_BLE.shape[2])).squeeze(1)


class _Block(nn.Module):
    """x + attention(norm(x)), then the same with a feed-forward of two layers."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = Float32LayerNorm(width)
        self.attention = CausalAttention(width, heads=heads, dropout=dropout)
        self.forward_norm = Float32LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, x_BLE: Tensor, known_BL: Tensor) -> Tensor:
        attended = self.attention(self.attention_norm(x_BLE), known_BL)
        x_BLE = x_BLE + self.dropout(widened(attended))
        inner = torch.relu(self.up(self.forward_norm(x_BLE).to(self.up.weight.dtype)))
        added: Tensor = self.dropout(widened(self.down(self.dropout(inner))))
        return x_BLE + added


def _item_feature(schema: FeatureSchema) -> Feature:
    found = [feature for feature in schema.of_kind("id") if feature.role == "item"]
    if len(found) != 1:
        named = ", ".join(f"`{feature.name}`" for feature in found) or "none"
        raise ConfigurationError(
            f"SASRec takes one feature of kind `id` and role `item`, the schema has {named}",
            "give exactly one feature `kind: id, role: item`",
        )
    return found[0]
