"""What a run's facts amount to: findings in order of harm, each with its cause and one cure."""

from __future__ import annotations

from typing import Any, Final

from lightning_mp.callbacks.precision_report_causes import diverged, fluctuation, learning_rate_spike, long_warmup
from lightning_mp.callbacks.precision_report_exception import exception_line
from lightning_mp.callbacks.precision_report_finding import Finding, finding, named
from lightning_mp.callbacks.precision_report_finite import finite_findings, place
from lightning_mp.callbacks.precision_report_learning_rate import ran_away

SEVERITIES: Final = ("error", "warning", "note")
"""The gravest first: an error has spoilt the run, a warning costs quality, a note tells."""
# Among equals the cause stands before what follows from it.
_ORDER: Final = (
    "MP109", "MP101", "MP107", "MP219", "MP221", "MP206", "MP204", "MP203", "MP201", "MP021", "MP202", "MP205", "MP207",
    "MP020", "MP210", "MP209", "MP212", "MP220", "MP208", "MP211", "MP215", "MP214", "MP218", "MP217", "MP213", "MP216",
)  # fmt: skip
_MANY_SKIPS: Final = 0.05
_FULL: Final = 0.95
# Signs, in the run itself, that its learning rate is too high, or may be.
_SIGNS: Final = frozenset({"MP201", "MP205", "MP206", "MP207", "MP208", "MP209", "MP210", "MP221"})


def findings(facts: dict[str, Any]) -> list[Finding]:
    """All that was found, the most harmful first.

    Args:
        facts: As `gathered` gives them, plus `exception` where the run ended by one.

    Returns:
        Mappings with `code`, `name`, `severity`, `problem`, `cure` and `page`, that of the docs.
    """
    found: list[Finding] = []
    if "loss_scale" in facts:
        for rule in (_weights, _underflow, _rates, _layers, _data, _results):
            found += rule(facts)
    signs = any(one["code"] in _SIGNS for one in found)
    found += [_linted(entry, signs=signs) for entry in facts.get("lint", [])]
    if (error := facts.get("exception")) is not None:
        found += _broke_off(error, found)
    # A scale that collapsed with no bad row in the data poisons statistics on its way: then it is the cause.
    scale_first = facts.get("finite", {}).get("bad_batch") is None
    return sorted(found, key=lambda f: (SEVERITIES.index(f["severity"]), _harm(f["code"], scale_first=scale_first)))


def _harm(code: str, *, scale_first: bool) -> float:
    if scale_first and code == "MP203":
        return _ORDER.index("MP201") + 0.5
    return _ORDER.index(code) if code in _ORDER else len(_ORDER) + (code == "MP111")


def _weights(facts: dict[str, Any]) -> list[Finding]:
    """A learning rate that is the cause of the rest, what the scale tells, and what is not finite."""
    spike = learning_rate_spike(facts)
    away = ran_away(facts) if spike is None else None
    found = [] if away is None else [finding("MP221", *away)]
    if spike is not None:
        found.append(finding("MP206", *spike))
    elif away is None and (apart := diverged(facts)) is not None:
        found.append(finding("MP207", "error", *apart))
    return found + _scale(facts, ran_away=away is not None) + finite_findings(facts, ran_away=away is not None)


def _scale(facts: dict[str, Any], *, ran_away: bool) -> list[Finding]:
    scale, bad = facts["loss_scale"], facts["finite"]["bad_batch"]
    if scale["collapse"] is not None:
        problem, cure = scale["collapse"]
        if bad is not None:
            cure = f"drop or repair the rows with a NaN or an infinity ({place(bad)}); no loss scale cures them"
        elif ran_away:
            cure = "mend the learning rate first (MP221): no loss scale, and no layer in float32, makes up for it"
        return [finding("MP201", "error", problem, cure)]
    if scale["forecast"] is not None:
        return [finding("MP210", "warning", *scale["forecast"])]
    if scale["attempts"] >= 20 and scale["skip_rate"] > _MANY_SKIPS:
        skips = scale["skips"]
        layers = [layer for skip in skips for layer in skip["layers"][:1]]
        often = f", most often in `{max(layers, key=layers.count)}`" if layers else ""
        problem = f"{scale['skip_rate']:.1%} of {scale['attempts']:,} optimizer steps were skipped{often}"
        cure = "start from a smaller `init_scale`, and keep the named layers in float32 with `KeepInFP32`"
        cure = "mend the learning rate first (MP221)" if ran_away else cure
        return [finding("MP209", "warning", problem, cure)]
    return []


def _linted(entry: Finding, *, signs: bool) -> Finding:
    """A finding of the lint; a high learning rate that did no harm in this run is a note."""
    severity = entry["severity"] if entry["severity"] in SEVERITIES else "warning"
    if entry["code"] != "MP111" or signs:
        return {**entry, "severity": severity}
    return {**entry, "severity": "note", "problem": f"{entry['problem']}; this run shows no sign of harm by it"}


def _broke_off(error: dict[str, Any], found: list[Finding]) -> list[Finding]:
    """What the fit ended by, and the lint's finding where it is one; what a callback raised it for isn't said twice."""
    stopped = error["type"] in ("KeyboardInterrupt", "SIGTERMException")
    line = exception_line(error)
    text = f"the fit ended by `{error['type']}`" + (f": {line}" if line else "")
    told = next(
        (one for one in found if line and line.rstrip(".") in (one["problem"], one["problem"].rstrip("."))), None
    )
    if told is not None:
        text, cure = f"the fit ended by `{error['type']}`, raised for {told['code']}", f"as {told['code']} says"
        return [finding("MP216", "note", text, cure)]
    if (known := error.get("known")) is not None:
        before = [] if any(one["code"] == known["code"] for one in found) else [known]
        return [*before, finding("MP216", "error", text, f"as {known['code']} says: {known['cure']}")]
    cure = "go on from the last checkpoint with `ckpt_path`" if stopped else "see the traceback it ended with"
    return [finding("MP216", "note" if stopped else "error", text, cure)]


def _underflow(facts: dict[str, Any]) -> list[Finding]:
    under = facts["underflow"]
    if under["told"] is None:
        return []
    last = max(under["probes"][-1]["layers"].values(), default=0.0)
    return [finding("MP202", "error" if last > 0.25 else "warning", *under["told"])]


def _rates(facts: dict[str, Any]) -> list[Finding]:
    found = []
    if (moves := fluctuation(facts)) is not None:
        found.append(finding("MP208", "warning", *moves))
    if (warmed := long_warmup(facts)) is not None:
        found.append(finding("MP220", "warning", *warmed))
    share = facts["gradients"]["clipped_share"]
    if share is not None and share > 0.5 and facts["gradients"]["steps"] >= 20:
        problem = f"{share:.0%} of {facts['gradients']['steps']:,} steps had their gradients clipped"
        cure = "raise the limit to about the median of `gradient_norm`, or lower the learning rate"
        found.append(finding("MP211", "warning", problem, cure))
    return found


def _layers(facts: dict[str, Any]) -> list[Finding]:
    kept, precision = facts["float32"], facts["run"]["precision"]
    wrong = [layer["layer"] for layer in kept["layers"] if layer["verified"] is False]
    if wrong:
        problem = f"{named(wrong)} should be in float32, and its gradients came out of a shorter format"
        return [finding("MP212", "warning", problem, "leave what calls it uncompiled")]
    if kept["kept_by"] is None and precision == "16-mixed":
        problem = "input and output layers were trained in float16 with the rest"
        return [finding("MP213", "note", problem, "add `KeepInFP32`, which finds, keeps and verifies them")]
    return []


def _data(facts: dict[str, Any]) -> list[Finding]:
    found = []
    leaks = facts["leaks"]
    for leak in leaks[:3]:
        disguise = max(leak["auc"], 1 - leak["auc"]) > 0.999
        problem = (
            f"`{leak['column']}` alone tells the label with an AUC of {leak['auc']:.4f} over {leak['rows']:,} training "
            f"rows{': it is the target in disguise' if disguise else ''}; every metric of this run is worthless if it "
            "became known after the event"
        )
        cure = f"take `{leak['column']}` out, or make it of what was known before the event (point in time)"
        found.append(finding("MP021" if disguise else "MP020", "error" if disguise else "warning", problem, cure))
    data = facts["data"]
    if data is not None and data["audit"] is None:
        problem = f"no audit gate judged the features of `{data['store']}`"
        cure = "add `audit: {policy: fp16, fail_under: 80}` to the data, or run `lightning-mp audit` on the store"
        found.append(finding("MP217", "note", problem, cure))
    return found


def _results(facts: dict[str, Any]) -> list[Finding]:
    found, memory, export = [], facts["memory"], facts["export"]
    undefined = [n for n, s in facts["metrics"].items() if s["not_finite"] and n.startswith("val")]
    undefined += [
        f"{stage} {n}" for stage, m in facts.get("evaluations", {}).items() for n, v in m.items() if v is None
    ]
    if undefined:
        problem = f"not a number, or undefined: {named(undefined)}"
        cure = "see the findings above; without any, the part has one class alone, or none"
        found.append(finding("MP215", "warning", problem, cure))
    if export is not None and export["bundle"] is None and facts["run"]["steps"] and not facts.get("exception"):
        problem = f"`OnnxExport` wrote no bundle ({export['asked']})"
        cure = "see its warning for the number that was refused; `lightning-mp export` tries again from a checkpoint"
        found.append(finding("MP214", "warning", problem, cure))
    gpu, total = memory["gpu"], memory["gpu_total"]
    if gpu is not None and total and gpu["values"] and max(gpu["values"]) > _FULL * total:
        problem = f"{max(gpu['values']) / total:.0%} of the GPU's {total / 2**30:.0f} GiB were in use"
        found.append(finding("MP218", "warning", problem, "make batches smaller, and accumulate gradients instead"))
    if facts["run"]["began"] is not None and not facts["run"]["steps"] and not facts.get("exception"):
        problem = "the fit took no optimizer step"
        found.append(finding("MP219", "error", problem, "look at `max_epochs`, `limit_train_batches` and the loader"))
    return found
