"""Findings of values that are not finite: where they came from, as far as it was seen."""

from __future__ import annotations

from typing import Any

from lightning_mp.callbacks.precision_report_finding import Finding, finding, named


def finite_findings(facts: dict[str, Any], *, ran_away: bool) -> list[Finding]:
    """Poisoned statistics, a batch that is not finite, weights that are not.

    Args:
        facts: Of the run.
        ran_away: Whether the learning rate was found to be the cause of all of it.
    """
    finite, found = facts["finite"], []
    bad, poisoned, weights = finite["bad_batch"], finite["poisoned"], finite["weights"]
    if poisoned is not None:
        layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in poisoned["names"]))
        why, cure = _cause(facts, ran_away=ran_away)
        problem = (
            f"the running statistics of {named(layers)} are not finite since step {poisoned['step']} or earlier, and "
            f"so is every validation: {why}"
        )
        guard = "add `NormGuard`, which keeps such a batch out of them"
        cure = f"drop or repair these rows, and {guard}" if bad is not None else cure or guard
        found.append(finding("MP203", "error", problem, cure))
    elif bad is not None:
        guarded = finite["restored"]
        told = f"; `NormGuard` put the running statistics back after {guarded:,} batches" if guarded else ""
        cure = "drop or repair these rows; `lightning-mp audit` finds them in the table"
        severity = "error" if weights or not facts["loss_scale"]["scaled"] else "warning"
        found.append(finding("MP204", severity, f"a training batch is not finite: {place(bad)}{told}", cure))
    if weights:
        problem = f"weights are NaN or infinite at the end: {named(weights)}"
        cure = "train again from the last sound checkpoint, once what stands above is mended"
        if bad is None and poisoned is None and not ran_away:
            why, told = _cause(facts, ran_away=False)
            problem, cure = f"{problem}; {why}", told or "train again from the last sound checkpoint"
        found.append(finding("MP205", "error", problem, cure))
    return found


def loss_is_gone(facts: dict[str, Any], since: int) -> tuple[str, str]:
    """Problem and cure of a training loss that is no number up to the end, where no bad batch was seen."""
    why, cure = _cause(facts, ran_away=False)
    fallback = "lower the learning rate, and clip with `GradientClipping(max_norm=1.0)`, if the layer itself is sound"
    return f"the training loss is not finite since step {since}; {why}", cure or fallback


def place(bad: dict[str, Any]) -> str:
    """Batch, tensor, rows and columns of a value that is not finite, in words."""
    rows = f", rows {', '.join(map(str, bad['rows']))}" if bad["rows"] else ""
    columns = f", columns {', '.join(map(str, bad['columns']))}" if bad["columns"] else ""
    return f"batch {bad['batch']} (step {bad['step']}), `{bad['tensor']}`{rows}{columns}"


def _cause(facts: dict[str, Any], *, ran_away: bool) -> tuple[str, str]:
    """What was seen of the cause, never more, and what to do where that is not enough to go by."""
    finite = facts["finite"]
    if (bad := finite["bad_batch"]) is not None:
        return f"a training batch that holds a NaN or an infinity went through: {place(bad)}", ""
    if ran_away:
        return "the weights had outgrown the format, as told above", "mend the learning rate first"
    if finite["events"]:
        return f"the first value that is not finite, as `NonFiniteMonitor` saw it: {finite['events'][0]['text']}", ""
    gone = finite.get("loss_gone")
    name = "add `NonFiniteMonitor`, which names the batch and the layer where it begins"
    if "NonFiniteMonitor" in facts["run"]["callbacks"]:
        name = ""
    if gone is not None and gone["finite"]:
        batch = f"batch {gone['batch']} (step {gone['step']}), whose values are finite, {gone['largest']:.3g} at most"
        first = f"the first loss that was no number came of {batch}"
        began = [
            skip["layers"][0] for skip in facts["loss_scale"]["skips"] if skip["origin"] == "forward" and skip["layers"]
        ]
        if began:
            return f"{first}; the forward pass overflowed first in `{began[0]}`", ""
        return f"{first}; in which layer it began is not known here", name
    return "the cause was not seen here", name
