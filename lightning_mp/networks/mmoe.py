"""MMoE: several tasks over shared experts, each task with a gate of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.feature_embedding import FeatureEmbedding
from lightning_mp.networks.logit_head import LogitHead
from lightning_mp.networks.mlp import MLP
from lightning_mp.networks.require_inputs import require_inputs
from lightning_mp.networks.scaled_linear import widened
from lightning_mp.schema import FeatureSchema

# B = batch, X = joined inputs, K = experts, H = width of an expert's output, T = tasks


class MMoE(nn.Module):
    """Several tasks over shared experts; each task mixes them by a gate of its own, for one logit a task.

    A gate is a linear layer with a softmax, and each task has a tower over its mixture. Gates, mixtures and last
    layers are float32 under any precision. Against float64, with inputs of unit variance and the default sizes, the
    logits are in float16 and bfloat16 autocast off by at most 1 unit of the format's relative step (2^-10, 2^-7),
    relative to their root mean square plus 1; they stay finite for dense inputs scaled by 1e-3 to 1e3.

    Args:
        schema: Features of the batches; it gives all input sizes.
        tasks: Names of the tasks in the order of the logits' columns, or how many there are.
        embedding_dim: Width of every embedding table.
        experts: Experts, K.
        expert_hidden: Widths of each expert's layers; the last is H.
        tower_hidden: Widths of each task's tower; empty for its last layer alone.
        dropout: Share of deep activations dropped in training, in [0, 1).
        sparse: Give the embeddings sparse gradients; see `FeatureEmbedding`.
        fused: Keep all embeddings in one table; left out, it is so with `sparse`.
        max_rows: Most rows of an embedding; larger vocabularies are hashed.

    Attributes:
        tasks: Names of the tasks; `task_0`, `task_1`, ... where only their number was given.

    Raises:
        ConfigurationError: The schema has no input or a sequence, there is no task or one stands twice, a size makes
            no sense, or (on use) a batch has other columns than the schema.
        DataError: On use: an id is outside its table; see `FeatureEmbedding`.

    Example:
        >>> from lightning_mp.schema import Feature
        >>> price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16")
        >>> network = MMoE(FeatureSchema(features=(price,)), tasks=["click", "order"], experts=3)
        >>> network({"dense": torch.tensor([[0.5], [1.5]], dtype=torch.float16)}).shape
        torch.Size([2, 2])

    Source:
        Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts, KDD 2018,
        equations 4 to 7.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        tasks: Sequence[str] | int,
        embedding_dim: int = 16,
        experts: int = 4,
        expert_hidden: Sequence[int] = (128, 64),
        tower_hidden: Sequence[int] = (32,),
        dropout: float = 0.0,
        sparse: bool = False,
        fused: bool | None = None,
        max_rows: int | None = None,
    ) -> None:
        super().__init__()
        self.tasks = tuple(f"task_{i}" for i in range(tasks)) if isinstance(tasks, int) else tuple(tasks)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks) or isinstance(tasks, str):
            raise ConfigurationError(
                f"`tasks` must be different names or their number, got {tasks!r}", "such as `[click, order]`"
            )
        if experts < 1:
            raise ConfigurationError(f"`experts` must be at least 1, got {experts}", "start with 4")
        require_inputs(schema, "MMoE")
        self.schema = schema
        self.embedding = FeatureEmbedding(
            schema, embedding_dim=embedding_dim, sparse=sparse, fused=fused, max_rows=max_rows
        )
        width = self.embedding.joined_width
        self.experts = nn.ModuleList(MLP(width, hidden=expert_hidden, dropout=dropout) for _ in range(experts))
        shared = [width, *expert_hidden][-1]
        self.gates = nn.ModuleList(LogitHead(width, experts) for _ in self.tasks)
        self.towers = nn.ModuleList(MLP(shared, hidden=tower_hidden, dropout=dropout) for _ in self.tasks)
        self.heads = nn.ModuleList(LogitHead([shared, *tower_hidden][-1]) for _ in self.tasks)

    @override
    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of a batch.

        Args:
            batch: `ids` (B, F) and `multi` (B, M, L) int32 or int64, `dense` (B, D) floating, as far as the schema has
                them.

        Returns:
            Shape (B, T), float32, columns in the order of `tasks`.
        """
        x_BX = self.embedding.join(batch)
        experts_BKH = torch.stack([widened(expert(x_BX)) for expert in self.experts], dim=1)
        logits = []
        for gate, tower, head in zip(self.gates, self.towers, self.heads, strict=True):
            weights_BK = torch.softmax(gate(x_BX), dim=1)
            mixture_BH = (weights_BK.unsqueeze(2) * experts_BKH).sum(dim=1)
            logits.append(head(tower(mixture_BH)))
        return torch.cat(logits, dim=1)
