"""One attempt to write `model.onnx` in one precision, and everything that is measured of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lightning_mp.bundle import MODEL
from lightning_mp.errors import ParityError
from lightning_mp.export import fidelity
from lightning_mp.export.activation_ranges import activation_ranges, largest_by_module
from lightning_mp.export.candidate_lists import candidate_lists
from lightning_mp.export.core_graph import write_core
from lightning_mp.export.encoded_rows import EncodedRows, Logits, module_logits, session_logits
from lightning_mp.export.graph_precision import check_precision
from lightning_mp.export.half_layers import half_weights, halve_layers
from lightning_mp.export.half_tables import halve_tables
from lightning_mp.export.integer_layers import batch_dependence, quantise
from lightning_mp.export.judged_rows import JudgedRows
from lightning_mp.export.layer_verdicts import layer_verdicts
from lightning_mp.export.parity import Comparison, judge
from lightning_mp.export.precision_policy import HALF, FilePrecision, PrecisionPolicy
from lightning_mp.export.report_findings import report_findings
from lightning_mp.export.strict_run import ROWS, strict_run
from lightning_mp.export.task_parity import compared
from lightning_mp.hardware.session import open_session

Answer = Callable[[EncodedRows], Logits]
Joint = Callable[[Answer, float], dict[str, Any]]
"""Checks what goes around `model.onnx`, given the logits that belong to encoded rows and their tolerance."""
_RANGES = 12


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What became of an attempt.

    Attributes:
        precision: Of the file.
        report: Every number, for `parity.json`.
        tables: For each embedding table `"float16"`, or why it is float32.
        layers: For each layer that multiplies `"float16"`, or why it is float32.
        failed: Which gate refused it; `None` where it passed.
    """

    precision: FilePrecision
    report: dict[str, Any]
    tables: dict[str, str] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    failed: str | None = None


def attempt(
    reference: nn.Module,
    judged: JudgedRows,
    folder: Path,
    precision: FilePrecision,
    policy: PrecisionPolicy,
    *,
    joint: Joint,
    tasks: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
) -> Attempt:
    """Write `model.onnx` in one precision and judge it.

    Args:
        reference: The module in float32, which is the truth.
        judged: Rows to judge on.
        folder: Where to write.
        precision: Of the file.
        policy: Which layers may be float16.
        joint: What else there is to write and to check.
        tasks: Names of the columns of logits (N, T).
        limits: Limits of gates other than the defaults.
    """
    made = Attempt(
        precision=precision, report={"policy": precision, "split": judged.split, "outside": dict(judged.outside)}
    )
    path = folder / MODEL
    sample = judged.rows[:4].tensors()
    deployed, halved = _deployed(reference, judged, path, made, policy)
    if made.failed is None:
        homes = write_core(deployed, judged.sizes, sample, path)
        mixed = precision == "fp16-mixed"
        check_precision(path, halved, arithmetic=mixed, weights=frozenset(deployed.state_dict()))
        try:
            _measure(made, _Written(reference, deployed, path, homes), judged, joint, tasks)
        except ParityError as error:
            made.failed, made.report["code"] = error.problem, getattr(error, "code", "MP301")
    if made.failed is None:
        single = {"logit.max": max(1e-4, fidelity.ERRORS * made.report["float32_error"])} if precision == "fp32" else {}
        made.report["gates"] = judge(made.report, precision, {**single, **(limits or {})})
        broken = [gate for gate in made.report["gates"] if not gate["ok"]]
        made.failed = _sentence(broken[0], made.report, judged) if broken else None
        made.report |= {"code": broken[0]["code"]} if broken else {}
    made.report |= {"passed": made.failed is None, **({"failed": made.failed} if made.failed else {})}
    made.report["findings"] = report_findings(made.report, made.layers)
    return made


def _deployed(
    reference: nn.Module, judged: JudgedRows, path: Path, made: Attempt, policy: PrecisionPolicy
) -> tuple[nn.Module, frozenset[str]]:
    """The module that is exported, and the names of its float16 weights."""
    if made.precision not in HALF:
        return reference, frozenset()
    sample, verdicts = judged.rows[:4].tensors(), None
    if made.precision == "fp16-mixed":
        ranges = activation_ranges(path, write_core(reference, judged.sizes, sample, path), judged.rows)
        verdicts = layer_verdicts(reference, judged.rows, largest_by_module(ranges), policy)
        widest = sorted(ranges, key=lambda entry: -entry.largest)[:_RANGES]
        made.report["ranges"] = {
            "values": len(ranges),
            "limit": policy.to_dict()["largest_activation"],
            "largest": [
                {"module": r.module, "operator": r.operator, "largest": r.largest if np.isfinite(r.largest) else None,
                 "non_finite": r.non_finite, "below_normal": r.below_normal}
                for r in widest
            ],
        }  # fmt: skip
    deployed = copy.deepcopy(reference)
    made.tables = {name: reason or "float16" for name, reason in halve_tables(deployed, sample).items()}
    halved = frozenset(f"{name}.weight" for name, verdict in made.tables.items() if verdict == "float16")
    if verdicts is not None:
        moved = halve_layers(deployed, verdicts, sample)
        inside = {name: any(name == part or name.startswith(f"{part}.") for part in moved) for name in verdicts.reasons}
        made.layers = {
            name: "float16" if inside[name] else reason or "it does not run in float16"
            for name, reason in verdicts.reasons.items()
        }
        halved |= half_weights(deployed, moved)
        made.report["layers"] = made.layers
        if not moved:
            reasons = "; ".join(f"`{name}`: {reason}" for name, reason in made.layers.items())
            told = f"no layer may compute in float16: {reasons or 'the network has no linear layer'}"
            # A file that was asked for is written with float16 tables alone; `auto` has a precision of that name.
            if halved and policy.file != "auto":
                made.report["note"] = told
            else:
                made.failed = told
    elif not halved:
        reasons = "; ".join(f"`{name}`: {reason}" for name, reason in made.tables.items())
        made.failed = reasons or "the network has no embedding table"
    return deployed, halved


@dataclass(frozen=True, slots=True)
class _Written:
    reference: nn.Module
    deployed: nn.Module
    path: Path
    homes: Mapping[str, str]


def _measure(made: Attempt, written: _Written, judged: JudgedRows, joint: Joint, tasks: Sequence[str]) -> None:
    report, rows = made.report, judged.rows
    expected = module_logits(written.reference, rows)
    report["float32_error"] = fidelity.float32_error(written.reference, rows, expected)
    tolerance = max(fidelity.TOLERANCE, fidelity.ERRORS * report["float32_error"])
    if made.precision == "fp16-mixed":
        report["strict"] = _strict(written, judged, expected)
    if made.precision == "int8-dynamic":
        quantise(written.path)
    session = open_session(written.path, target="cpu")
    if made.precision == "int8-dynamic":
        report["batch_dependence"] = batch_dependence(session, rows)
    elif made.precision == "fp16-mixed":  # this machine rounds elsewhere than torch does; the strict run does not
        report["graph"] = fidelity.check_core(session_logits(session, rows), session, rows, judged.sizes, tolerance)
    else:
        answers = module_logits(written.deployed, rows)
        report["graph"] = fidelity.check_core(answers, session, rows, judged.sizes, tolerance)
    if made.precision in ("int8-dynamic", "fp16-mixed"):
        report |= joint(lambda changed: session_logits(session, changed), tolerance)
    else:
        report |= joint(lambda changed: module_logits(written.deployed, changed), tolerance)
    lists, length = candidate_lists(judged.items, rows)
    comparison = Comparison(
        reference=expected, exported=session_logits(session, rows),
        reference_lists=module_logits(written.reference, lists), exported_lists=session_logits(session, lists),
        length=length, labels=judged.labels, float32_error=report["float32_error"],
    )  # fmt: skip
    report |= compared(comparison, judged, tasks)


def _strict(written: _Written, judged: JudgedRows, expected: Logits) -> dict[str, Any]:
    rows = judged.rows[:ROWS]
    run = strict_run(written.path, rows.feeds, written.homes)
    here = session_logits(open_session(written.path, target="cpu"), rows)
    hidden = int((_finite_rows(here) & ~_finite_rows(run.logits)).sum())
    if run.non_finite:
        names = ", ".join(f"`{name or 'the module itself'}`" for name in run.origins)
        shown = f", ONNX Runtime on this processor hides {hidden} of them (it computes float16 as float32)"
        raise fidelity.FidelityError(
            f"strict float16 run: {run.non_finite} of {len(rows)} rows are NaN or infinite{shown if hidden else ''}; "
            f"it begins in {names}",
            "MP306",
            "do not deploy this file to a GPU",
        )
    fidelity.check_strict(module_logits(written.deployed, rows), run.logits)
    relative = fidelity.differences(expected[:ROWS], run.logits)
    return {
        "rows": len(rows),
        "non_finite": run.non_finite,
        "hidden_by_this_machine": hidden,
        "logit_p99": float(np.quantile(relative, 0.99)),
        "logit_max": float(relative.max(initial=0.0)),
    }


def _finite_rows(logits: Logits) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(logits).reshape(len(logits), -1).all(axis=1))


def _sentence(gate: dict[str, Any], report: Mapping[str, Any], judged: JudgedRows) -> str:
    section, _, key = gate["path"].partition(".")
    sign, count = "<" if gate["at_least"] else ">", report[section].get("rows", len(judged.rows))
    where = f" ({report['slices']['worst']})" if section == "slices" else ""
    what = f"{section} {key}".replace("_", " ")
    return (
        f"{report['policy']}: {what} is {gate['value']:.6g} {sign} {gate['limit']:g}{where} "
        f"on {count:,} {judged.split} rows"
    )
