"""Write a bundle's folder: attempts by policy, the gates, the manifest in both graphs, the seal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn

from lightning_mp import __version__
from lightning_mp.artifacts import replacing
from lightning_mp.bundle import MODEL, PARITY, PIPELINE, Bundle, seal, writing
from lightning_mp.errors import ParityError
from lightning_mp.export.attempt import Answer, Attempt, attempt
from lightning_mp.export.encoded_rows import module_logits
from lightning_mp.export.graph_precision import initializer_types
from lightning_mp.export.judged_rows import JudgedRows
from lightning_mp.export.precision_policy import PrecisionPolicy
from lightning_mp.export.task_names import task_names
from lightning_mp.hardware.targets import Target
from lightning_mp.manifest import METADATA_KEY, Manifest, TensorInput, TensorType

_WHY = {
    "fp32": "the other precisions were refused",
    "fp16-storage": "it passes the gates, and halves the memory of the tables; arithmetic is float32 either way",
    "fp16-mixed": "it passes the gates and the strict float16 run, and the target computes in float16",
}


def write_bundle(
    reference: nn.Module,
    judged: JudgedRows,
    dirpath: Path,
    *,
    policy: PrecisionPolicy,
    target: Target,
    manifest: Manifest,
    joint: Callable[[Answer, Path, float], dict[str, Any]],
    finish: Callable[[Path], None],
    gates: Mapping[str, float] | None = None,
    overwrite: bool = False,
) -> Bundle:
    """Write the first precision of a policy that passes its gates.

    Args:
        reference: The module in float32, which is the truth.
        judged: Rows to judge on.
        dirpath: The folder to write.
        policy: Precisions to try.
        target: Where it will run.
        manifest: What is known before: schema, inputs, task, classes.
        joint: Writes and checks what goes around `model.onnx`, in the folder it is given.
        finish: Writes what else belongs into the folder.
        gates: Limits of gates other than the defaults.
        overwrite: Replace a bundle that is there.

    Raises:
        ParityError: A gate failed. The report is at `<dirpath>.parity.json`; no bundle was written.
    """
    refusal = dirpath.with_name(f"{dirpath.name}.{PARITY}")
    tried, tasks = policy.attempts(target), _tasks(reference, judged, manifest)
    refused: list[Attempt] = []
    with writing(dirpath, overwrite=overwrite) as folder:
        for wanted in tried:
            made = attempt(
                reference, judged, folder, wanted, policy, tasks=tasks, limits=gates,
                joint=lambda answer, tolerance: joint(answer, folder, tolerance),
            )  # fmt: skip
            if made.failed is None:
                break
            refused.append(made)
            if wanted == tried[-1]:
                with replacing(refusal) as file:
                    file.write(json.dumps(made.report, indent=2, allow_nan=False).encode())
                raise ParityError(made.failed, f"read `{refusal}`; no bundle was written")
            _empty(folder)
        made.report["refused"] = [{"policy": entry.precision, "failed": entry.failed} for entry in refused]
        finish(folder)
        precision = _record(policy, target, made, refused, folder)
        tensors = tuple(_tensor(name, values) for name, values in judged.rows.feeds.items())
        sealed = replace(manifest, tensors=tensors, tasks=tasks, precision=precision, versions=_versions())
        for name in (MODEL, PIPELINE):
            if (folder / name).is_file():
                _annotate(folder / name, sealed)
        (folder / PARITY).write_text(json.dumps(made.report, indent=2, allow_nan=False), encoding="utf-8")
        seal(folder, sealed)
    refusal.unlink(missing_ok=True)
    return Bundle.open(dirpath, verify=False)


def _tasks(reference: nn.Module, judged: JudgedRows, manifest: Manifest) -> tuple[str, ...]:
    """Names of the columns of the logits; none where there is one logit a row."""
    few = module_logits(reference, judged.rows[:2])
    labels = [feature.name for feature in manifest.schema.labels]
    return task_names(reference, few.shape[1], labels) if few.ndim == 2 else ()


def model_classes(module: nn.Module) -> dict[str, str]:
    """Class of a module and of the network in it, for the manifest."""
    network = getattr(module, "network", module)  # no `or`: a compiled one refuses to be a truth value
    return {"module": _path(module), "network": _path(getattr(network, "_orig_mod", network))}


def _record(
    policy: PrecisionPolicy, target: Target, made: Attempt, refused: list[Attempt], folder: Path
) -> dict[str, Any]:
    reason = f"as asked; {made.report['note']}" if "note" in made.report else "as asked"
    if refused:
        reason = "; ".join(f"{entry.precision} was not taken: {entry.failed}" for entry in refused)
    elif policy.file == "auto":
        reason = _WHY[made.precision]
    return {
        "policy": policy.file,
        "settings": policy.to_dict(),
        "target": target.name,
        "used": made.precision,
        "reason": reason,
        "tables": made.tables,
        "layers": made.layers,
        "run_time": policy.run_time(made.precision),
        "initializers": initializer_types(folder / MODEL),
    }


def _tensor(name: str, values: NDArray[Any]) -> TensorInput:
    datatypes: dict[str, TensorType] = {"i": "INT64", "f": "FP32", "b": "BOOL"}
    return TensorInput(name=name, datatype=datatypes[values.dtype.kind], shape=values.shape[1:])


def _versions() -> dict[str, str]:
    packages = ("torch", "onnx", "onnxscript", "onnxruntime", "numpy")
    return {"lightning_mp": __version__, **{package: version(package) for package in packages}}


def _annotate(path: Path, manifest: Manifest) -> None:
    """Write the manifest into the ONNX file; the digests of files are left out, for the file is one of them."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    model.metadata_props.add(key=METADATA_KEY, value=replace(manifest, files={}).to_json())
    path.write_bytes(model.SerializeToString())


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _path(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
