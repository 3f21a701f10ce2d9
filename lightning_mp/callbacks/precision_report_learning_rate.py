"""What tells of a learning rate that was far too high from the first step on."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

_GREW: Final = 5.0
_SIZE: Final = 0.5
_FELL: Final = 0.9
_LEAPT: Final = 100.0
_MANY_SKIPS: Final = 0.05


def ran_away(facts: dict[str, Any]) -> tuple[str, str, str] | None:
    """Weights that grew manifold in the first steps, or a loss that leapt before it was no number, and harm after it.

    Args:
        facts: Of the run.

    Returns:
        Severity, problem and cure; a warning where the run only learnt nothing. `None` where a batch was not finite:
        then that comes first.
    """
    if facts["finite"]["bad_batch"] is not None:
        return None
    growth, gone = facts["finite"].get("growth"), facts["finite"].get("loss_gone")
    losses = facts["metrics"].get("train_loss", {"steps": [], "values": [], "not_finite": []})
    first = losses["values"][0] if losses["values"] else None
    if growth is not None and growth["to"] >= _SIZE and growth["to"] >= _GREW * growth["from"]:
        severity, harm = _harm(facts, losses)
        if not harm:
            return None
        step = growth["step"]
        what = (
            f"the weights of `{growth['weight']}` grew from {growth['from']:.3g} to {growth['to']:.3g} (root mean "
            f"square) within the first {step:,} step{'s' if step != 1 else ''}, and {harm}"
        )
    elif gone is not None and gone["finite"] and first and (gone["highest_before"] or 0.0) > _LEAPT * abs(first):
        severity, step = "error", gone["step"]
        what = (
            f"the training loss leapt from {first:.3g} to {gone['highest_before']:.3g} within the first {step:,} "
            "steps, and was no number from then on, though its batch was finite"
        )
    else:
        return None
    rates = [
        (rate, name.removeprefix("lr-"))
        for name, curve in facts["learning_rate"].items()
        for at, rate in zip(curve["steps"], curve["values"], strict=True)
        if at <= step
    ]
    rate, name = max(rates, default=(0.0, ""))
    problem = f"at a learning rate of {rate:.3g} (`{name}`) {what}" if name else what
    cure = (
        "lower the learning rate to a tenth, and again until the first hundred steps leave the weights about as large"
    )
    return severity, problem, cure


def _harm(facts: dict[str, Any], losses: dict[str, Any]) -> tuple[str, str]:
    """How grave what came after is, and in words; nothing where the run learnt all the same."""
    scale, values = facts["loss_scale"], losses["values"]
    if scale["skip_rate"] > _MANY_SKIPS:
        return "error", f"{scale['skipped']:,} of {scale['attempts']:,} steps were skipped"
    if losses["not_finite"] and (not values or losses["not_finite"][-1] > losses["steps"][-1]):
        return "error", "the training loss is no number at the end"
    if len(values) < 2:
        return "note", ""
    last, first = median(values[-5:]), values[0]
    if last > 2 * abs(first):
        return "error", f"the training loss ended at {last:.3g}, from {first:.3g} at the first step"
    if first > 0 and last > _FELL * first:
        return (
            "warning",
            f"nothing was learnt: the training loss ended at {last:.3g}, from {first:.3g} at the first step",
        )
    return "note", ""
