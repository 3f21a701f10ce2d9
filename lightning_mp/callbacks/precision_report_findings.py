"""What a run's facts amount to: findings in order of harm, each with its cause and one cure."""

from __future__ import annotations

from typing import Any, Final

from lightning_mp.callbacks.precision_report_causes import diverged, fluctuation, learning_rate_spike, long_warmup
from lightning_mp.callbacks.precision_report_codes import RUN_CODES
from lightning_mp.data.audit.codes import CODES

SEVERITIES: Final = ("error", "warning", "note")
"""The gravest first: an error has spoilt the run, a warning costs quality, a note tells."""
# Among equals the cause stands before what follows from it.
_ORDER: Final = (
    "MP219", "MP206", "MP204", "MP203", "MP201", "MP021", "MP202", "MP205", "MP207", "MP020", "MP210", "MP209", "MP212",
    "MP220", "MP208", "MP211", "MP215", "MP214", "MP218", "MP217", "MP213", "MP216",
)  # fmt: skip
_MANY_SKIPS: Final = 0.05
_FULL: Final = 0.95
Finding = dict[str, Any]


def findings(facts: dict[str, Any]) -> list[Finding]:
    """All that was found, the most harmful first.

    Args:
        facts: As `gathered` gives them, plus `exception` where the run ended by one.

    Returns:
        Mappings with `code`, `name`, `severity`, `problem`, `cure` and `page`, that of the docs.
    """
    found: list[Finding] = []
    if "loss_scale" in facts:
        for rule in (_scale, _finite, _underflow, _rates, _layers, _data, _results):
            found += rule(facts)
    found += [
        {**entry, "severity": entry["severity"] if entry["severity"] in SEVERITIES else "warning"}
        for entry in facts.get("lint", [])
    ]
    if (error := facts.get("exception")) is not None:
        stopped = error["type"] in ("KeyboardInterrupt", "SIGTERMException")
        text = f"the fit ended by `{error['type']}`" + (f": {_line(error['text'])}" if error["text"] else "")
        cure = "go on from the last checkpoint with `ckpt_path`" if stopped else "see the traceback it ended with"
        found.append(_finding("MP216", "note" if stopped else "error", text, cure))
    # A scale that collapsed with no bad row in the data poisons statistics on its way: then it is the cause.
    scale_first = facts.get("finite", {}).get("bad_batch") is None
    return sorted(found, key=lambda f: (SEVERITIES.index(f["severity"]), _harm(f["code"], scale_first=scale_first)))


def _finding(code: str, severity: str, problem: str, cure: str) -> Finding:
    name = RUN_CODES.get(code) or CODES[code]
    return {"code": code, "name": name, "severity": severity, "problem": problem, "cure": cure,
            "page": f"findings/{code}.md"}  # fmt: skip


def _harm(code: str, *, scale_first: bool) -> float:
    if scale_first and code == "MP203":
        return _ORDER.index("MP201") + 0.5
    return _ORDER.index(code) if code in _ORDER else len(_ORDER)


def _scale(facts: dict[str, Any]) -> list[Finding]:
    scale, bad = facts["loss_scale"], facts["finite"]["bad_batch"]
    if scale["collapse"] is not None:
        problem, cure = scale["collapse"]
        if bad is not None:
            cure = f"drop or repair the rows with a NaN or an infinity ({_place(bad)}); no loss scale cures them"
        return [_finding("MP201", "error", problem, cure)]
    if scale["forecast"] is not None:
        return [_finding("MP210", "warning", *scale["forecast"])]
    if scale["attempts"] >= 20 and scale["skip_rate"] > _MANY_SKIPS:
        skips = scale["skips"]
        layers = [layer for skip in skips for layer in skip["layers"][:1]]
        often = f", most often in `{max(layers, key=layers.count)}`" if layers else ""
        problem = f"{scale['skip_rate']:.1%} of {scale['attempts']:,} optimizer steps were skipped{often}"
        cure = "start from a smaller `init_scale`, and keep the named layers in float32 with `KeepInFP32`"
        return [_finding("MP209", "warning", problem, cure)]
    return []


def _finite(facts: dict[str, Any]) -> list[Finding]:
    finite, found = facts["finite"], []
    bad, poisoned, weights = finite["bad_batch"], finite["poisoned"], finite["weights"]
    rows = "" if bad is None else f": {_place(bad)}"
    if poisoned is not None:
        layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in poisoned["names"]))
        what = "holds a NaN or an infinity" if bad is not None else "overflowed in its forward pass"
        problem = (
            f"the running statistics of {_named(layers)} are not finite since step {poisoned['step']} or earlier, and "
            f"so is every validation: a training batch that {what} went through{rows}"
        )
        repair = "drop or repair these rows, and add" if bad is not None else "add"
        found.append(_finding("MP203", "error", problem, f"{repair} `NormGuard`, which keeps such a batch out of them"))
    elif bad is not None:
        problem = f"a training batch is not finite{rows}"
        guarded = finite["restored"]
        told = f"; `NormGuard` kept {guarded} such batches out of the running statistics" if guarded else ""
        cure = "drop or repair these rows; `lightning-mp audit` finds them in the table"
        found.append(_finding("MP204", "warning" if not weights else "error", problem + told, cure))
    if weights:
        problem = f"weights are NaN or infinite at the end: {_named(weights)}"
        cure = (
            "train again from the last sound checkpoint, after the findings above; `NonFiniteMonitor` names the place"
        )
        found.append(_finding("MP205", "error", problem, cure))
    return found


def _underflow(facts: dict[str, Any]) -> list[Finding]:
    under = facts["underflow"]
    if under["told"] is None:
        return []
    last = max(under["probes"][-1]["layers"].values(), default=0.0)
    return [_finding("MP202", "error" if last > 0.25 else "warning", *under["told"])]


def _rates(facts: dict[str, Any]) -> list[Finding]:
    found = []
    if (spike := learning_rate_spike(facts)) is not None:
        found.append(_finding("MP206", *spike))
    elif (apart := diverged(facts)) is not None:
        found.append(_finding("MP207", "error", *apart))
    if (moves := fluctuation(facts)) is not None:
        found.append(_finding("MP208", "warning", *moves))
    if (warmed := long_warmup(facts)) is not None:
        found.append(_finding("MP220", "warning", *warmed))
    share = facts["gradients"]["clipped_share"]
    if share is not None and share > 0.5 and facts["gradients"]["steps"] >= 20:
        problem = f"{share:.0%} of {facts['gradients']['steps']:,} steps had their gradients clipped"
        cure = "raise the limit to about the median of `gradient_norm`, or lower the learning rate"
        found.append(_finding("MP211", "warning", problem, cure))
    return found


def _layers(facts: dict[str, Any]) -> list[Finding]:
    kept, precision = facts["float32"], facts["run"]["precision"]
    wrong = [layer["layer"] for layer in kept["layers"] if layer["verified"] is False]
    if wrong:
        problem = f"{_named(wrong)} should be in float32, and its gradients came out of a shorter format"
        return [_finding("MP212", "warning", problem, "leave what calls it uncompiled")]
    if kept["kept_by"] is None and precision == "16-mixed":
        problem = "input and output layers were trained in float16 with the rest"
        return [_finding("MP213", "note", problem, "add `KeepInFP32`, which finds, keeps and verifies them")]
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
        found.append(_finding("MP021" if disguise else "MP020", "error" if disguise else "warning", problem, cure))
    data = facts["data"]
    if data is not None and data["audit"] is None:
        problem = f"no audit gate judged the features of `{data['store']}`"
        cure = "add `audit: {policy: fp16, fail_under: 80}` to the data, or run `lightning-mp audit` on the store"
        found.append(_finding("MP217", "note", problem, cure))
    return found


def _results(facts: dict[str, Any]) -> list[Finding]:
    found, memory, export = [], facts["memory"], facts["export"]
    undefined = [n for n, s in facts["metrics"].items() if s["not_finite"] and n.startswith("val")]
    undefined += [
        f"{stage} {n}" for stage, m in facts.get("evaluations", {}).items() for n, v in m.items() if v is None
    ]
    if undefined:
        problem = f"not a number, or undefined: {_named(undefined)}"
        cure = "see the findings above; without any, the part has one class alone, or none"
        found.append(_finding("MP215", "warning", problem, cure))
    if export is not None and export["bundle"] is None and facts["run"]["steps"] and not facts.get("exception"):
        problem = f"`OnnxExport` wrote no bundle ({export['asked']})"
        cure = "see its warning for the number that was refused; `lightning-mp export` tries again from a checkpoint"
        found.append(_finding("MP214", "warning", problem, cure))
    gpu, total = memory["gpu"], memory["gpu_total"]
    if gpu is not None and total and gpu["values"] and max(gpu["values"]) > _FULL * total:
        problem = f"{max(gpu['values']) / total:.0%} of the GPU's {total / 2**30:.0f} GiB were in use"
        found.append(_finding("MP218", "warning", problem, "make batches smaller, and accumulate gradients instead"))
    if facts["run"]["began"] is not None and not facts["run"]["steps"] and not facts.get("exception"):
        problem = "the fit took no optimizer step"
        found.append(_finding("MP219", "error", problem, "look at `max_epochs`, `limit_train_batches` and the loader"))
    return found


def _place(bad: dict[str, Any]) -> str:
    rows = f", rows {', '.join(map(str, bad['rows']))}" if bad["rows"] else ""
    columns = f", columns {', '.join(map(str, bad['columns']))}" if bad["columns"] else ""
    return f"batch {bad['batch']} (step {bad['step']}), `{bad['tensor']}`{rows}{columns}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more


def _line(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= 300 else f"{first[:297]}..."
