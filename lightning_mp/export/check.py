"""Judge a bundle on this machine, without the code of its model and without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np

from lightning_mp.bundle import METADATA_KEY, SAMPLES, Bundle
from lightning_mp.errors import BundleError, ConfigurationError, LightningMPError
from lightning_mp.export.graph_precision import initializer_types
from lightning_mp.export.pipeline_graph import PREFIX
from lightning_mp.export.sample_inputs import read_samples
from lightning_mp.hardware.providers import placement
from lightning_mp.hardware.session import open_session

Target = Literal["this"]
TOLERANCE: Final = 1e-4
_AGAIN: Final = "export the model again with `lightning-mp export`"


@dataclass(frozen=True, slots=True)
class Finding:
    """One question asked of a bundle.

    Attributes:
        name: What was asked.
        ok: Whether the answer is good.
        detail: The answer.
    """

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All answers.

    Attributes:
        path: The bundle's folder.
        target: What it was judged for.
        findings: In the order they were asked; after one that is not ok some are left out.
    """

    path: Path
    target: Target
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every answer is good."""
        return all(finding.ok for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"path": str(self.path), "target": self.target, "ok": self.ok, "findings": findings}


def check_bundle(path: str | Path, target: Target = "this") -> CheckReport:
    """Judge a bundle: files, number formats, providers, and the answers it was sealed with.

    Args:
        path: Its folder.
        target: `"this"`: the machine that the check runs on.

    Returns:
        What was found; a bundle that is damaged is a finding, not an error.

    Raises:
        ConfigurationError: The target is not known.
    """
    if target not in get_args(Target):
        raise ConfigurationError(f"there is no target {target!r}", "use 'this': the machine that the check runs on")
    folder, findings = Path(path), []
    try:
        bundle = Bundle.open(folder)
    except LightningMPError as error:
        return CheckReport(folder, target, (Finding("files", False, _sentence(error)),))
    findings.append(Finding("files", True, f"{len(bundle.manifest.files)} files match their digests"))
    questions: tuple[tuple[str, Callable[[Bundle], str]], ...] = (
        ("manifest in the graphs", _metadata),
        ("number formats", _formats),
        ("session of model.onnx", lambda b: _placed(open_session(b.model, target))),
        ("session of pipeline.onnx", lambda b: _placed(open_session(b.pipeline, "cpu"))),
        ("sample answers", _samples),
    )
    for name, question in questions:
        try:
            findings.append(Finding(name, True, question(bundle)))
        except LightningMPError as error:
            findings.append(Finding(name, False, _sentence(error)))
    return CheckReport(folder, target, tuple(findings))


def _metadata(bundle: Bundle) -> str:
    import onnx

    told = replace(bundle.manifest, files={}).to_json()
    for file in (bundle.model, bundle.pipeline):
        entries = onnx.load(str(file), load_external_data=False).metadata_props
        if told not in [entry.value for entry in entries if entry.key == METADATA_KEY]:
            raise BundleError(f"`{file.name}` was sealed with another manifest", _AGAIN)
    return "both graphs carry this manifest"


def _formats(bundle: Bundle) -> str:
    promised: dict[str, str] = bundle.manifest.precision.get("initializers", {})
    for file, prefix in ((bundle.model, ""), (bundle.pipeline, PREFIX)):
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
    raw, expected = read_samples(bundle.path / SAMPLES, bundle.manifest.inputs)
    session = open_session(bundle.pipeline, "cpu")
    try:
        logit = session.run(["logit"], raw)[0]
    except Exception as error:  # its exceptions share no base class but Exception
        raise BundleError(
            f"`{bundle.pipeline.name}` does not run: {' '.join(str(error).split())[:200]}", _AGAIN
        ) from error
    away = np.abs(logit - expected) / np.maximum(1.0, np.abs(expected) / 16.0)
    if not away.max(initial=0.0) <= TOLERANCE:
        row = int(np.nanargmax(np.where(np.isnan(away), np.inf, away)))
        problem = f"sample row {row} gives the logit {logit[row]:.7g}, it gave {expected[row]:.7g} when exported"
        raise BundleError(problem, "use the versions of `manifest.json`, or export the model again")
    return f"{len(expected)} rows within {away.max(initial=0.0):.1e} of the logits when exported"


def _sentence(error: LightningMPError) -> str:
    return f"{error.problem}; {error.hint}"
