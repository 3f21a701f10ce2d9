"""Export any LightningModule that declares a sample batch, with names, parity and checklist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_mp.bundle import SAMPLES, Bundle
from lightning_mp.errors import ConfigurationError
from lightning_mp.export import fidelity
from lightning_mp.export.batch_module import BatchModule, Gives, Output
from lightning_mp.export.encoded_rows import EncodedRows, session_logits
from lightning_mp.export.inference_copy import inference_copy
from lightning_mp.export.judged_rows import JudgedRows, slices_of
from lightning_mp.export.precision_policy import Precision, PrecisionPolicy
from lightning_mp.export.sample_inputs import write_samples
from lightning_mp.export.write_bundle import model_classes, write_bundle
from lightning_mp.hardware.session import open_session
from lightning_mp.hardware.targets import Target, TargetName
from lightning_mp.manifest import Manifest
from lightning_mp.schema import FeatureSchema

Batch = Mapping[str, Tensor] | Sequence[Tensor]
_CHANGED: Final = 64
_SAMPLES: Final = 64
_FEWEST: Final = 8


def export_onnx(
    module: nn.Module,
    dirpath: str | Path,
    *,
    sample: Batch | None = None,
    rows: Iterable[Batch] | None = None,
    inputs: Sequence[str] | None = None,
    labels: str | None = None,
    items: Sequence[str] = (),
    vocabulary_sizes: Mapping[str, int | Sequence[int]] | None = None,
    gives: Gives = "logit",
    output: Output = 0,
    precision: Precision | PrecisionPolicy = "auto",
    target: TargetName = "this",
    gates: Mapping[str, float] | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Export a module of any project: `model.onnx` with inputs named by you, its parity, and what `check` needs.

    The module is copied and stays untouched: hooks, compilation, mode, device. What `export_bundle` demands of a graph
    holds here too; there is no `pipeline.onnx`, since nobody told how raw values become these tensors.

    Args:
        module: Its `forward` takes one mapping of tensors, the tensors by name, or by position in the order of
            `inputs`.
        dirpath: The folder to write; it appears whole or not at all.
        sample: A batch of a few rows; by default the module's `example_input_array`. A mapping names the inputs; for
            a sequence `inputs` does.
        rows: Batches of real rows to judge on, as `sample`; by default the sample alone, which proves little.
        inputs: Names of the inputs of the graph, taken out of the batch by name; by default all of the sample.
        labels: Name of the labels in the batches of `rows`, (B,) or (B, T) in [0, 1], for AUC and NDCG. Never an input.
        items: Inputs that describe the item: they vary within the lists that top-k is compared on.
        vocabulary_sizes: Rows of the table that an integer input indexes, or of each of its columns: ids outside are
            read as 0. Without it the graph looks up whatever row it is asked for.
        gives: What `forward` answers: `"logit"`, or `"score"`: a probability.
        output: Key or position of the answer, where `forward` answers a mapping or a sequence; several, such as
            `["click", "order"]`, for a model of several tasks: they name the columns of `logit` and `score`.
        precision: As in `export_bundle`.
        target: Where it will run; it decides what `"auto"` tries first.
        gates: Limits other than the defaults, by the gate's path.
        overwrite: Replace a bundle that is there.

    Returns:
        The bundle.

    Raises:
        ConfigurationError: There is no sample, a name is not in the batch, an input has no effect on the answer, or
            torch cannot export the module.
        ParityError: A gate failed. The report is at `<dirpath>.parity.json`; no bundle was written.
        ArtifactError: The folder is there already, or cannot be written.
    """
    policy, names = PrecisionPolicy.of(precision), _names(module, sample, inputs, labels)
    few = _named(_declared(module, sample), names)
    batches = [few] if rows is None else [_named(batch, names, labels) for batch in rows]
    whole = {name: np.concatenate([part[name] for part in batches]) for name in batches[0]}
    marks = None if labels is None or rows is None else _labels(whole.pop(labels))
    sizes = _sizes(vocabulary_sizes or {}, whole)
    outside = _unknown_as_zero(whole, sizes)
    encoded = EncodedRows.of(whole)
    if len(encoded) < 2:
        raise ConfigurationError(f"{len(encoded)} rows to judge on, at least 2 are needed", "give `rows` more batches")
    reference = BatchModule(inference_copy(module), names, gives=gives, output=output).eval()
    judged = JudgedRows(
        split="given",
        rows=encoded,
        labels=marks,
        sizes=sizes,
        outside=outside,
        items={name: np.arange(_known(name, whole, "items")[0].size) for name in items},
        slices=slices_of(
            {n: v for n, v in whole.items() if v.ndim == 1 and v.dtype.kind in "bi"},
            marks if marks is None or marks.ndim == 1 else marks[:, 0],
        ),
    )
    changed = encoded[: max(_CHANGED, _FEWEST)]

    def surround(answer: Any, folder: Path, tolerance: float) -> dict[str, Any]:
        session = open_session(folder / "model.onnx", target="cpu")
        found = fidelity.check_inputs(
            lambda feeds: answer(EncodedRows.of(dict(feeds))),
            lambda feeds: session_logits(session, EncodedRows.of(dict(feeds))),
            changed.feeds, "model.onnx", tolerance,
        )  # fmt: skip
        for name in found["silent"]:
            if not _constant(changed.feeds[name]):
                others = [other for other in names if other != name]
                raise ConfigurationError(
                    f"input `{name}` has no effect on what `{type(module).__name__}` answers",
                    f"name the inputs that have: `inputs={others}`",
                )
        return {"inputs": found}

    def finish(folder: Path) -> None:
        shown = encoded[:_SAMPLES]
        logit = session_logits(open_session(folder / "model.onnx", target="cpu"), shown)
        write_samples(folder / SAMPLES, shown.feeds, logit, shown.feeds)

    manifest = Manifest(
        schema=FeatureSchema(features=()),
        inputs=(),
        task=str(getattr(module, "task", "click")),
        model=model_classes(module),
    )
    return write_bundle(
        reference, judged, Path(dirpath), policy=policy, target=Target.named(target), manifest=manifest,
        joint=surround, finish=finish, gates=gates, overwrite=overwrite,
    )  # fmt: skip


def _declared(module: nn.Module, sample: Batch | None) -> Any:
    declared = getattr(module, "example_input_array", None) if sample is None else sample
    if declared is None:
        raise ConfigurationError(
            f"`{type(module).__name__}` declares no sample batch", "set its `example_input_array`, or give `sample`"
        )
    return declared


def _names(
    module: nn.Module, sample: Batch | None, inputs: Sequence[str] | None, labels: str | None
) -> tuple[str, ...]:
    declared = _declared(module, sample)
    if inputs is not None:
        return tuple(inputs)
    if isinstance(declared, Mapping):
        return tuple(name for name in declared if name != labels)
    raise ConfigurationError("a sample without names needs them", "give `inputs`, one name a tensor, in their order")


def _named(batch: Any, names: Sequence[str], labels: str | None = None) -> dict[str, NDArray[Any]]:
    wanted = [*names, *([] if labels is None else [labels])]
    if not isinstance(batch, Mapping):
        parts = [batch] if isinstance(batch, Tensor) else list(batch)
        if len(parts) < len(wanted):
            raise ConfigurationError(f"a batch has {len(parts)} tensors, {len(wanted)} are named", "name each of them")
        batch = dict(zip(wanted, parts, strict=False))
    missing = [name for name in wanted if name not in batch]
    if missing:
        there = ", ".join(f"`{name}`" for name in batch)
        raise ConfigurationError(f"the batch has no `{missing[0]}`; it has {there}", "name what is in the batch")
    return {name: _array(name, batch[name]) for name in wanted}


def _array(name: str, value: Any) -> NDArray[Any]:
    if not isinstance(value, Tensor) or value.dim() == 0:
        raise ConfigurationError(
            f"`{name}` of the batch is {type(value).__name__}, not a tensor of rows", "leave it out of `inputs`"
        )
    if value.dtype == torch.bool:
        return value.cpu().numpy()
    wide = value.detach().cpu().to(torch.float32 if value.is_floating_point() else torch.int64)
    return np.array(wide.numpy())


def _sizes(given: Mapping[str, int | Sequence[int]], whole: Mapping[str, NDArray[Any]]) -> dict[str, Sequence[int]]:
    for name in given:
        _known(name, whole, "vocabulary_sizes")
    return {name: [size] if isinstance(size, int) else list(size) for name, size in given.items()}


def _known(name: str, whole: Mapping[str, NDArray[Any]], argument: str) -> NDArray[Any]:
    if name not in whole:
        listed = ", ".join(f"`{known}`" for known in whole)
        raise ConfigurationError(f"`{argument}` names `{name}`, which is no input", f"use one of {listed}")
    return whole[name]


def _unknown_as_zero(whole: dict[str, NDArray[Any]], sizes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Read ids outside of their vocabulary as row 0, in place, as the graph does; how many there are, by input."""
    found: dict[str, int] = {}
    for name, limits in sizes.items():
        ids = whole[name]
        lost = (ids < 0) | (ids >= np.array(limits))
        if lost.any():
            found[name] = int(lost.sum())
            whole[name] = np.where(lost, 0, ids)
    return found


def _labels(values: NDArray[Any]) -> NDArray[np.float32]:
    marks = values.astype(np.float32)
    return marks if marks.ndim == 2 and marks.shape[1] > 1 else marks.reshape(-1)


def _constant(values: NDArray[Any]) -> bool:
    return bool((values == values[:1]).all())
