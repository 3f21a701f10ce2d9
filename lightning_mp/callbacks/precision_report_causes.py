"""What the curves of a run say: a learning rate that jumped, a loss that ran away, a loss that moves too much."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any, Final

from lightning_mp.callbacks.precision_report_finite import loss_is_gone

_JUMP: Final = 5.0
_WORSE: Final = 1.5
_FLUCTUATES: Final = 0.15
_LONG_WARMUP: Final = 0.5
_FIRST_STEPS: Final = 5
Curve = dict[str, list[Any]]
Told = tuple[str, str]


def learning_rate_spike(facts: dict[str, Any]) -> tuple[str, str, str] | None:
    """A learning rate five times any before it, after which the loss rose or steps were skipped.

    A warm-up rises by less from its sixth step on; a rise that did no harm is not told.

    Args:
        facts: Of the run.

    Returns:
        Severity, problem and cure; a warning where the loss has come back since.
    """
    for name, curve in facts["learning_rate"].items():
        highest = 0.0
        for step, rate in zip(curve["steps"], curve["values"], strict=True):
            if step - curve["steps"][0] >= _FIRST_STEPS and rate >= _JUMP * highest > 0:
                severity, harm = _harm_after(facts, step)
                if harm:
                    problem = (
                        f"the learning rate of `{name.removeprefix('lr-')}` jumped from {highest:.3g} to {rate:.3g} at "
                        f"step {step}, and {harm}"
                    )
                    cure = (
                        f"take the jump out of the schedule, or cap it: `LearningRateWarmup(max_lr={2 * highest:.2g})`"
                    )
                    return severity, problem, cure
            highest = max(highest, rate)
    return None


def diverged(facts: dict[str, Any]) -> Told | None:
    """A training loss that ended far above its best, or as no number."""
    curve = facts["metrics"].get("train_loss")
    if curve is None or (len(curve["values"]) < 10 and not curve["not_finite"]):
        return None
    if facts["loss_scale"]["scaled"] and facts["loss_scale"]["collapse"] is not None:
        return None  # the loss of skipped steps: told already
    values, gone = curve["values"], curve["not_finite"]
    last_finite = curve["steps"][-1] if curve["steps"] else -1
    cure = (
        "lower the learning rate, warm it up with `LearningRateWarmup`, and clip with `GradientClipping(max_norm=1.0)`"
    )
    if gone and max(gone) > last_finite and not facts["finite"]["bad_batch"]:
        return loss_is_gone(facts, min(s for s in gone if s > last_finite))
    if len(values) < 10:
        return None
    tail, best = median(values[-5:]), min(median(values[i : i + 5]) for i in range(len(values) - 4))
    if tail > 3 * best and tail > median(values[:5]):
        return f"the training loss ended at {tail:.3g}, after {best:.3g} at its best", cure
    return None


def long_warmup(facts: dict[str, Any]) -> Told | None:
    """A warm-up that was still going on at the end of the fit, or took more than half of its steps."""
    warmup = facts.get("warmup")
    if warmup is None or not warmup["of"] or facts.get("exception") is not None:
        return None
    skipped = facts["loss_scale"]["skipped"] if warmup["by"] == "LearningRateWarmup" else 0
    if skipped > warmup["of"] / 2:
        return None  # the skips are the finding: there were hardly any steps to warm up
    asked, taken, of = warmup["steps"], warmup["taken"], warmup["of"] - skipped
    cure = f"fewer warm-up steps, such as `warmup_steps: {max(1, of // 10)}`, or more epochs"
    if taken < asked:
        problem = f"the fit ended within the warm-up of the learning rate, after {taken:,} of its {asked:,} steps"
        problem += f" ({skipped:,} more were skipped)" if skipped else ""
        return f"{problem} (`{warmup['by']}`): the learning rate that was asked for was never reached", cure
    if asked > _LONG_WARMUP * of:
        return f"the warm-up of the learning rate took {asked:,} of the fit's {of:,} steps (`{warmup['by']}`)", cure
    return None


def fluctuation(facts: dict[str, Any]) -> Told | None:
    """A validation loss that moved by more than 15 % of its median over the last five validations."""
    settings = facts["fluctuation"] or {"monitor": "val_loss", "threshold": _FLUCTUATES}
    if facts["fluctuation"] is not None:  # the monitor looked at once, and knows more
        if not (reports := settings["reports"]):
            return None
        last = reports[-1]
        moved = "is no number" if last["change"] is None else f"moved by {last['change']:+.0%}"
        problem = f"`{settings['monitor']}` {moved} at step {last['step']} ({len(reports)} such validations)"
        return f"{problem}: {last['findings'][0]['text']}", _not_yet_there(last["findings"][0]["cure"], facts)
    curve, limit = facts["metrics"].get(settings["monitor"]), settings["threshold"]
    if curve is None or len(curve["values"]) < 3:
        return None
    window = curve["values"][-5:]
    middle = median(window)
    rises = [max(0.0, after - before) for before, after in pairwise(window)]
    if middle <= 0 or max(rises) / middle <= limit:  # a loss that only falls is learning
        return None
    problem = (
        f"`{settings['monitor']}` rose by {max(rises) / middle:.0%} of its median from one validation to the next, "
        f"more than {limit:.0%}"
    )
    return problem, "lower the learning rate, or validate on more rows"


def _not_yet_there(cure: str, facts: dict[str, Any]) -> str:
    """A cure without the advice to add what the run has."""
    there = facts["run"]["callbacks"]
    first, _, rest = cure.partition("; ")
    if "LossScaleMonitor" in there and first == "`LossScaleMonitor` names the layers" and rest:
        return rest.replace("keep them", "keep the layers that overflow", 1)
    first, _, rest = cure.partition(", and watch with ")
    named = rest.split("`")[1::2]
    return first if named and set(named) <= set(there) else cure


def _harm_after(facts: dict[str, Any], step: int) -> tuple[str, str]:
    """How grave what went wrong after a step is, and in words; nothing where nothing did."""
    curve = facts["metrics"].get("train_loss", {"steps": [], "values": [], "not_finite": []})
    pairs = list(zip(curve["steps"], curve["values"], strict=True))
    before, after = [v for s, v in pairs if s <= step + 1][-10:], [v for s, v in pairs if s > step + 1][:20]
    if any(gone > step for gone in curve["not_finite"]):
        return "error", "the loss is not finite after it"
    if before and after and median(after) > _WORSE * median(before):
        return "error", f"the training loss went from {median(before):.3g} to {median(after):.3g}"
    skips = [skip["step"] for skip in facts["loss_scale"]["skips"]]
    late, early = sum(s >= step for s in skips), sum(s < step for s in skips)
    if late >= 3 and late > 3 * early:
        return "error", f"{late} steps were skipped from there on"
    if before and after and max(after[:5]) > 2 * _WORSE * max(before):
        return "warning", f"the training loss jumped from {median(before):.3g} to {max(after[:5]):.3g}, and came back"
    return "note", ""
