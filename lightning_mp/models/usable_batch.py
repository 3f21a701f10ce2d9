"""What a batch must be before a network sees it, and labels before a loss does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_mp.data.item_catalogue import item_place
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import FeatureSchema

Batch = Mapping[str, Tensor]
_IDS = ("ids", "multi", "history", "target", "negatives")


def require_usable(batch: Batch, network: nn.Module, schema: FeatureSchema | None) -> None:
    """Refuse a batch without rows, ids that are no integers, and a single row in front of batch normalisation.

    Shapes and types alone are looked at, so nothing waits for a GPU. An id outside its table is found by the lookup.

    Args:
        batch: As the loader gave it.
        network: What is about to see it.
        schema: Names the features.

    Raises:
        DataError: The batch cannot be used; what is wrong is named.
    """
    first = next(iter(batch.values()), None)
    rows = 0 if first is None else len(first)
    if not rows:
        raise DataError("the batch has no rows", "let the loader give at least one row a batch")
    for name in _IDS:
        if name in batch and (batch[name].is_floating_point() or batch[name].dtype == torch.bool):
            feature = f"feature `{schema.ids[0].name}` in " if name == "ids" and schema and schema.ids else ""
            raise DataError(
                f"{feature}`{name}` is {str(batch[name].dtype).removeprefix('torch.')}, ids are integers: float32 "
                "cannot tell those above 16,777,216 apart, float16 those above 2,048",
                "give int64 or int32",
            )
    if rows == 1 and network.training:
        for name, part in network.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:  # noqa: SLF001 (torch has no public name for all of them)
                raise DataError(
                    f"the batch has 1 row, and `{name}` normalises over the rows of a batch: it needs 2 in training",
                    "raise `batch_size`, or use a loader that joins a left-over row to the batch before it, as ours do",
                )


def require_logits(logits: Tensor, labels: Tensor, wanted: str) -> None:
    """Refuse logits of another shape than the labels.

    Raises:
        ConfigurationError: The shapes differ; both are named.
    """
    if logits.shape != labels.shape:
        raise ConfigurationError(
            f"the network gave logits of shape {tuple(logits.shape)}, the labels have {tuple(labels.shape)}", wanted
        )


def labels_of(batch: Batch) -> Tensor:
    """The labels.

    Raises:
        DataError: The batch has none.
    """
    labels = batch.get("labels")
    if labels is None:
        raise DataError("the batch has no `labels`", "train on a store that was prepared with a `label`")
    return labels


def check_labels(labels: Tensor, task: str) -> None:
    """Refuse labels outside [0, 1].

    Raises:
        DataError: There is one; it and its row are named.
    """
    wrong = ~((labels >= 0) & (labels <= 1))
    if wrong.any():
        row = int(wrong.reshape(len(labels), -1).any(1).nonzero()[0])
        raise DataError(
            f"label {labels[row].tolist()} at row {row} of the batch is outside [0, 1], task '{task}'",
            "make a label with `label: {value: ..., at_least: ...}`, or scale it to [0, 1]",
        )


def taken_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows of a batch that say what was taken: all without `labels`, else those whose first label is above 0.

    Raises:
        DataError: There is none.
    """
    labels = batch.get("labels")
    if labels is None:
        return batch
    taken = _first_above_zero(labels)
    if bool(taken.all()):
        return batch
    if not taken.any():
        problem = f"none of the {len(labels):,} rows of the batch has a label above 0: nothing was taken"
        raise DataError(problem, "prepare the store with `label: {taken: order}`")
    return {name: tensor[taken] for name, tensor in batch.items()}


def any_taken(batch: Batch) -> bool:
    """Whether `taken_rows` has a row of the batch to give."""
    return "labels" not in batch or bool(_first_above_zero(batch["labels"]).any())


def _first_above_zero(labels: Tensor) -> Tensor:
    return (labels if labels.dim() == 1 else labels[:, 0]) > 0


def with_own_target(batch: dict[str, Tensor], schema: FeatureSchema | None) -> dict[str, Tensor]:
    """A batch with `history`, and each row's own item as its `target` where it has `ids`.

    Raises:
        DataError: It has no `history`.
    """
    if "history" not in batch:
        there = ", ".join(f"`{name}`" for name in batch)
        hint = "give the store a feature of kind `sequence`, or train on `train_on: sequences`"
        raise DataError(f"the batch has no `history`; it has {there}", hint)
    if "ids" not in batch or schema is None:
        return batch
    return {**batch, "target": batch["ids"][:, item_place(schema)]}
