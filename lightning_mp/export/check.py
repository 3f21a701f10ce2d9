"""Judge a bundle on this machine, without the code of its model and without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_mp.bundle import SAMPLES, Bundle
from lightning_mp.errors import BundleError, LightningMPError
from lightning_mp.export.graph_precision import initializer_types
from lightning_mp.export.pipeline_graph import PREFIX
from lightning_mp.export.sample_inputs import read_samples
from lightning_mp.export.target_findings import Finding, machine_findings, sentence, target_findings
from lightning_mp.hardware.providers import placement
from lightning_mp.hardware.session import open_session
from lightning_mp.hardware.targets import Target, TargetName
from lightning_mp.manifest import METADATA_KEY

TOLERANCE: Final = 1e-4
_AGAIN: Final = "export the model again with `lightning-mp export`"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All answers.

    Attributes:
        path: The bundle's folder.
        target: What it was judged for.
        findings: In the order they were asked; after one that is not ok some are left out.
    """

    path: Path
    target: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every answer is good."""
        return all(finding.ok for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        findings = [{"code": finding.code, **asdict(finding)} for finding in self.findings]
        return {"path": str(self.path), "target": self.target, "ok": self.ok, "findings": findings}


def check_bundle(path: str | Path, target: TargetName = "this") -> CheckReport:
    """Judge a bundle: files, number formats, the answers it was sealed with, and whether a target computes it right.

    The hardware of the target need not be there: what a GPU would make of float16 is computed with ONNX's reference
    implementation, and operators and options are held against what is known of the target. On `"this"` machine the
    providers are really loaded too, and nodes really placed.

    Args:
        path: Its folder.
        target: Where it is to run; `"this"`: the machine that the check runs on.

    Returns:
        What was found; a bundle that is damaged is a finding, not an error.

    Raises:
        ConfigurationError: The target is not known.
    """
    profile, folder, findings = Target.named(target), Path(path), list[Finding]()
    try:
        bundle = Bundle.open(folder)
    except LightningMPError as error:
        return CheckReport(folder, target, (Finding("files", False, sentence(error)),))
    findings.append(Finding("files", True, f"{len(bundle.manifest.files)} files match their digests"))
    questions: list[tuple[str, Callable[[Bundle], str]]] = [
        ("manifest in the graphs", _metadata),
        ("number formats", _formats),
    ]
    if target == "this":
        questions.append(("session of model.onnx", lambda b: _placed(open_session(b.model, "this", tf32=_tf32(b)))))
    if bundle.has_pipeline:
        questions.append(("session of pipeline.onnx", lambda b: _placed(open_session(b.pipeline, "cpu"))))
    questions.append(("sample answers", _samples))
    for name, question in questions:
        try:
            findings.append(Finding(name, True, question(bundle)))
        except LightningMPError as error:
            findings.append(Finding(name, False, sentence(error)))
    findings += target_findings(bundle, profile)
    if target == "this":
        findings += machine_findings(bundle, profile)
    return CheckReport(folder, target, tuple(findings))


def _graphs(bundle: Bundle) -> tuple[tuple[Path, str], ...]:
    model = ((bundle.model, ""),)
    return (*model, (bundle.pipeline, PREFIX)) if bundle.has_pipeline else model


def _tf32(bundle: Bundle) -> bool:
    return bool(bundle.manifest.precision.get("settings", {}).get("tf32", False))


def _metadata(bundle: Bundle) -> str:
    import onnx

    told = replace(bundle.manifest, files={}).to_json()
    for file, _ in _graphs(bundle):
        entries = onnx.load(str(file), load_external_data=False).metadata_props
        if told not in [entry.value for entry in entries if entry.key == METADATA_KEY]:
            raise BundleError(f"`{file.name}` was sealed with another manifest", _AGAIN)
    return "the graphs carry this manifest"


def _formats(bundle: Bundle) -> str:
    promised: dict[str, str] = bundle.manifest.precision.get("initializers", {})
    for file, prefix in _graphs(bundle):
        found = initializer_types(file)
        for name, kind in promised.items():
            there = found.get(f"{prefix}{name}", "missing")
            if there != kind:
                problem = f"policy says `{name}` is {kind}, initializer `{prefix}{name}` in `{file.name}` is {there}"
                raise BundleError(problem, _AGAIN)
        extra = sorted(set(found) - set(promised)) if not prefix else []
        if extra:
            raise BundleError(f"initializer `{extra[0]}` of `{file.name}` is not in the policy", _AGAIN)
    halves = sum(kind == "FLOAT16" for kind in promised.values())
    return f"{bundle.manifest.precision.get('used')}: {len(promised)} initializers, {halves} in float16"


def _placed(session: Any) -> str:
    counts = placement(session)
    return ", ".join(f"{count} of {sum(counts.values())} nodes on {name}" for name, count in counts.items())


def _samples(bundle: Bundle) -> str:
    graph = bundle.pipeline if bundle.has_pipeline else bundle.model
    inputs = bundle.manifest.inputs if bundle.has_pipeline else bundle.manifest.tensors
    raw, expected = read_samples(bundle.path / SAMPLES, inputs)
    session = open_session(graph, "cpu")
    try:
        logit = session.run(["logit"], raw)[0]
    except Exception as error:  # its exceptions share no base class but Exception
        raise BundleError(f"`{graph.name}` does not run: {' '.join(str(error).split())[:200]}", _AGAIN) from error
    away = np.abs(logit - expected) / np.maximum(1.0, np.abs(expected) / 16.0)
    if not away.max(initial=0.0) <= TOLERANCE:
        place = np.unravel_index(int(np.argmax(np.where(np.isnan(away), np.inf, away))), away.shape)
        of_task = f" of task `{bundle.manifest.tasks[place[1]]}`" if len(place) > 1 else ""
        told = f"gives the logit{of_task} {logit[place]:.7g}, it gave {expected[place]:.7g} when exported"
        problem = f"sample row {place[0]} {told}"
        raise BundleError(problem, "use the versions of `manifest.json`, or export the model again")
    return f"{len(expected)} rows within {away.max(initial=0.0):.1e} of the logits when exported"
