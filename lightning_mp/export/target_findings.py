"""What a target would make of a bundle, judged without its hardware; and the checklist of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from lightning_mp.bundle import SAMPLES, Bundle
from lightning_mp.errors import LightningMPError
from lightning_mp.export.codes import code_of
from lightning_mp.export.sample_inputs import read_tensors
from lightning_mp.export.strict_run import bfloat16_nodes, float16_nodes, strict_run
from lightning_mp.hardware.facts import Hardware
from lightning_mp.hardware.providers import CPU, Provider, compiled_in
from lightning_mp.hardware.session import open_session, provider_options
from lightning_mp.hardware.targets import CUDA, NEEDED_CAPABILITY, Target

STRICT_TOLERANCE: Final = 2e-2
_NO_ACCELERATOR: Final = {"AzureExecutionProvider", CPU}
_ON_CPU_ONLY: Final = {
    "LabelEncoder", "StringNormalizer", "SequenceEmpty", "SequenceInsert", "SequenceAt", "ConcatFromSequence",
    "SplitToSequence", "SequenceConstruct", "Optional", "Unique",
}  # fmt: skip
"""Operators without a kernel on CUDA, and that TensorRT's parser refuses."""
_NOT_IN_TENSORRT: Final = _ON_CPU_ONLY | {"Loop"}
_INTEGER: Final = {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One question asked of a bundle.

    Attributes:
        name: What was asked.
        ok: Whether the answer is good.
        detail: The answer.
        warning: Whether an answer that is good is worth a look.
    """

    name: str
    ok: bool
    detail: str
    warning: bool = False

    @property
    def code(self) -> str:
        """Its stable code, such as `MP306`, which a page of the docs stands behind."""
        return code_of(self.name)


def target_findings(bundle: Bundle, target: Target) -> tuple[Finding, ...]:
    """Hold the graph of `model.onnx` against what a target computes.

    Args:
        bundle: An opened bundle.
        target: Where it is to run.
    """
    questions: tuple[tuple[str, Callable[[Bundle, Target], Iterator[Finding]]], ...] = (
        ("compute capability", _capability),
        ("float16 arithmetic", _float16),
        ("bfloat16 arithmetic", _bfloat16),
        ("scores depend on the batch", _batch),
        ("operators", _operators),
        ("TF32", _tf32),
    )
    findings: list[Finding] = []
    for name, question in questions:
        try:
            findings += question(bundle, target)
        except LightningMPError as error:
            findings.append(Finding(name, False, sentence(error)))
        except Exception as error:  # a damaged graph: each of onnx's passes has its own
            findings.append(Finding(name, False, f"`{bundle.model.name}`: {' '.join(str(error).split())[:200]}"))
    return tuple(findings)


def machine_findings(bundle: Bundle, target: Target) -> tuple[Finding, ...]:
    """The checklist of this machine: processor, GPUs, providers that really load, versions.

    Args:
        bundle: An opened bundle.
        target: This machine, as `Target.named("this")` gives it.
    """
    hardware = Hardware.read()
    half = "arithmetic" if hardware.cpu_float16 else "conversions only"
    wide = "products" if hardware.cpu_bfloat16 else "emulated"
    tiles = ", ".join(flag for flag in hardware.cpu_flags if flag.startswith("amx")) or "none"
    findings = [Finding("processor", True, f"{hardware.cpu}: float16 {half}, bfloat16 {wide}, AMX {tiles}")]
    for gpu in hardware.gpus:
        number = ".".join(map(str, gpu.capability))
        findings.append(Finding("GPU", True, f"{gpu.name}, capability {number}, driver {gpu.driver}"))
    if hardware.gpus and target.provider == CPU:
        detail = "a GPU is there, and this build of ONNX Runtime has no CUDA: install `onnxruntime-gpu` to use it"
        findings.append(Finding("GPU", True, detail, warning=True))
    for name in compiled_in():
        if name in _NO_ACCELERATOR:
            continue
        truth = Provider.read(name)
        why = f" ({truth.reason})" if truth.reason else ""
        detail = "runs" if truth.runs else f"is listed and does not load{why}; it would silently run on the CPU"
        findings.append(Finding(name, truth.runs or name != target.provider, detail, warning=not truth.runs))
    findings.append(_versions(bundle))
    return tuple(findings)


def sentence(error: LightningMPError) -> str:
    """An error as one line."""
    return f"{error.problem}; {error.hint}"


def _capability(_: Bundle, target: Target) -> Iterator[Finding]:
    if target.capability is not None:
        number, needed = (".".join(map(str, pair)) for pair in (target.capability, NEEDED_CAPABILITY))
        ok = target.capability >= NEEDED_CAPABILITY
        yield Finding("compute capability", ok, f"{number}; float16 needs {needed}, bfloat16 and TF32 8.0")


def _float16(bundle: Bundle, target: Target) -> Iterator[Finding]:
    nodes = float16_nodes(bundle.model)
    if not nodes:
        told = "no node computes in float16"
        if target.tensorrt is not None:
            told += f"; TensorRT {target.tensorrt} builds a float32 engine: its precision flags are not used"
        yield Finding("float16 arithmetic", True, told)
        return
    if not target.float16:
        told = f"{nodes} nodes of float16 are computed in float32 here: right, and no faster; tables are half the size"
        yield Finding("float16 arithmetic", True, told, warning=True)
        return
    flags = " in the graph itself: precision flags are not needed" if target.tensorrt is not None else ""
    yield Finding("float16 arithmetic", True, f"{nodes} nodes compute in float16{flags}")
    yield _strict(bundle)


def _strict(bundle: Bundle) -> Finding:
    feeds = read_tensors(bundle.path / SAMPLES)
    run = strict_run(bundle.model, feeds)
    rows = len(run.logits)
    if run.non_finite:
        detail = (
            f"{run.non_finite} of {rows} rows are NaN or infinite in float16, though ONNX Runtime on a processor shows "
            f"none of it (it computes float16 as float32); it begins in {', '.join(run.origins)}"
        )
        return Finding("strict float16 run", False, f"{detail}; do not deploy this file to a GPU")
    here = np.asarray(open_session(bundle.model, "cpu").run(["logit"], feeds)[0], dtype=np.float64)
    away = np.abs(run.logits - here) / np.maximum(1.0, np.abs(here) / 16.0)
    p99 = float(np.quantile(away, 0.99))
    detail = f"0 of {rows} rows are not finite; logits differ from float32 arithmetic by {p99:.2g} (99 % of rows)"
    return Finding("strict float16 run", p99 <= STRICT_TOLERANCE, detail)


def _bfloat16(bundle: Bundle, target: Target) -> Iterator[Finding]:
    nodes = bfloat16_nodes(bundle.model)
    if nodes and not target.bfloat16:
        detail = f"{nodes} nodes of bfloat16, which {target.name} has no arithmetic for: the session would not open"
        yield Finding("bfloat16 arithmetic", False, f"{detail}; export with precision 'fp16-storage' or 'fp32'")
    elif nodes:
        yield Finding("bfloat16 arithmetic", True, f"{nodes} nodes compute in bfloat16")


def _batch(bundle: Bundle, _: Target) -> Iterator[Finding]:
    if bundle.manifest.precision.get("used") == "int8-dynamic":
        detail = "int8 takes ranges from the batch: a row's score depends on the other rows; requests are scored apart"
        yield Finding("scores depend on the batch", True, detail, warning=True)


def _operators(bundle: Bundle, target: Target) -> Iterator[Finding]:
    counts = _operator_counts(bundle)
    if target.provider == CPU:
        yield Finding("operators", True, f"{sum(counts.values())} nodes, all for the processor")
        return
    refused = sorted((_NOT_IN_TENSORRT if target.tensorrt is not None else _ON_CPU_ONLY) & counts.keys())
    integer = sorted(_INTEGER & counts.keys())
    if refused:
        listed = ", ".join(f"{counts[name]} {name}" for name in refused)
        detail = f"{target.name} has no {listed}: they would run on the processor, or the engine would not build"
        yield Finding("operators", False, f"{detail}; look rows up with `nn.Embedding` and a mask, not `EmbeddingBag`")
    elif integer:
        detail = f"{', '.join(integer)}: int8 with ranges taken from the batch is for processors"
        yield Finding("operators", False, f"{detail}; export as fp16-mixed for {target.name}")
    else:
        yield Finding("operators", True, f"{sum(counts.values())} nodes, none of which {target.name} lacks")


def _tf32(bundle: Bundle, target: Target) -> Iterator[Finding]:
    if target.provider == CPU:
        return
    asked = bool(bundle.manifest.precision.get("settings", {}).get("tf32", False))
    if not target.tf32:
        yield Finding("TF32", True, "the hardware has none; float32 products stay float32")
    elif target.provider == CUDA:
        options = provider_options(CUDA, tf32=asked)
        default = "asked for: logits move by about 1e-3" if asked else "parity was measured without it"
        told = f"ONNX Runtime multiplies float32 in TF32 by default; open it with use_tf32={options['use_tf32']}"
        yield Finding("TF32", True, f"{told} ({default})", warning=asked)
    else:
        told = (
            "TensorRT multiplies float32 in TF32 by default, and its provider has no option; set NVIDIA_TF32_OVERRIDE=0"
        )
        yield Finding("TF32", True, told, warning=not asked)


def _operator_counts(bundle: Bundle) -> Counter[str]:
    import onnx

    return Counter(node.op_type for node in onnx.load(str(bundle.model), load_external_data=False).graph.node)


def _versions(bundle: Bundle) -> Finding:
    here = _version("onnxruntime") or _version("onnxruntime-gpu")
    then: Any = bundle.manifest.versions.get("onnxruntime")
    same = here == then
    detail = f"onnxruntime {here}" + ("" if same else f"; the bundle was judged with {then}")
    return Finding("versions", True, detail, warning=not same)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
