"""The page of a report: a function of its JSON alone."""

from __future__ import annotations

import math
from typing import Any, Final

from markupsafe import Markup

from lightning_mp.callbacks.precision_report_charts import (
    gradient_chart,
    loss_chart,
    memory_chart,
    rate_chart,
    scale_chart,
    underflow_map,
)
from lightning_mp.callbacks.precision_report_exception import exception_line
from lightning_mp.html_page.cards import Card, cards
from lightning_mp.html_page.notice import notice
from lightning_mp.html_page.page import page, table
from lightning_mp.html_page.prose import prose

SECTIONS: Final = (
    "Overview", "Findings", "Loss scale", "Learning rate and loss", "What gradients lost", "Layers in float32",
    "Gradients and clipping", "Memory", "Data", "Export", "Run",
)  # fmt: skip
"""Headings of every page, in order; those of what was not measured say so."""
_SKIPS: Final = 10
_FEATURES: Final = 200


def report_page(report: dict[str, Any]) -> str:
    """The whole page.

    Args:
        report: The report's JSON; facts that are missing leave their sections with a sentence.
    """
    run = report.get("run", {})
    content = (_overview, _findings, _scale, _rates, _underflow, _float32, _gradients, _memory, _data, _export, _run)
    sections: dict[str, str] = {}
    for heading, part in zip(SECTIONS, content, strict=True):
        measured = "loss_scale" in report or heading in ("Findings",)
        sections[heading] = part(report) if measured else "Not known: the run broke off before it was gathered."
    return page(f"Precision report: {run.get('module', 'a run')}", sections=sections)


def _overview(report: dict[str, Any]) -> Markup:
    run, scale, found = report["run"], report["loss_scale"], report["findings"]
    error, began = report.get("exception"), run["began"] is not None
    status = "broke off" if error else "finished" if began else "evaluated"
    worst = [max(p["layers"].values(), default=0.0) for p in report["underflow"]["probes"]]
    limit = report["underflow"]["threshold"]
    peaks = [(n, max(m["values"])) for n in ("gpu", "resident") if (m := report["memory"][n]) and m["values"]]
    grave = [sum(f["severity"] == s for f in found) for s in ("error", "warning", "note")]
    skipped = f"{scale['skipped']:,}" if scale["attempts"] else "-"
    shown = [
        Card(name="run", value=status, note=error["type"] if error else f"{run['steps']:,} steps",
             mood="error" if error else "good"),
        Card(name="precision", value=run["precision"], note=f"on {run['device']}"),
        Card(name="steps skipped", value=skipped,
             note=f"{scale['skip_rate']:.2%} of the steps" if skipped != "-" else "no loss scale",
             mood="warning" if scale["skip_rate"] > 0.05 else ""),
        Card(name="loss scale", value=_power(scale["scale"]), note="at the end",
             mood="error" if scale["collapse"] else ""),
        Card(name="lost in float16", value=f"{worst[-1]:.2g}" if worst else "-", note="of the worst layer's gradient",
             mood="" if not worst else "error" if worst[-1] > 0.25 else "warning" if worst[-1] > limit else "good"),
        Card(name="peak memory", value=_size(peaks[0][1]) if peaks else "-",
             note={"gpu": "on the GPU", "resident": "of the process"}[peaks[0][0]] if peaks else ""),
        Card(name="findings", value=f"{len(found)}", note=f"errors {grave[0]}, warnings {grave[1]}, notes {grave[2]}",
             mood="error" if grave[0] else "warning" if grave[1] else "good"),
    ]  # fmt: skip
    evaluations = [
        [stage, name, value] for stage, m in report.get("evaluations", {}).items() for name, value in m.items()
    ]
    metrics = [["fit", n, s["values"][-1]] for n, s in report["metrics"].items() if s["values"]]
    both = table(["part", "metric", "at the end"], metrics + evaluations) if metrics or evaluations else Markup("")
    why = f"Broke off: `{error['type']}`: {exception_line(error)}" if error else ""
    return cards(shown) + (_said(why) if why else Markup("")) + both


def _findings(report: dict[str, Any]) -> Markup:
    found = report["findings"]
    if not found:
        return Markup("<p>None: nothing of what was measured is out of order.</p>")
    return Markup("").join(
        notice(
            f"{f['code']} {f['name']}", f["problem"], cure=f["cure"], severity=f["severity"],
            source=f"more: docs/{f['page']}",
        )
        for f in found
    )  # fmt: skip


def _scale(report: dict[str, Any]) -> Markup:
    scale = report["loss_scale"]
    if not scale["scaled"] or scale["series"] is None:
        return _said(f"Precision {report['run']['precision']} has no loss scale.")
    skips, total = scale["skips"], scale["skipped"]
    text = f"{total:,} of {scale['attempts']:,} steps were skipped"
    text += (
        f"; the scale doubles after {scale['growth_interval']:,} steps without one."
        if scale["growth_interval"]
        else "."
    )
    body = _said(text)
    parts = [scale_chart(scale)]
    if skips:
        rows = [
            [s["step"], _power(s["scale"]), s["origin"], ", ".join(s["layers"][:3]) or "not told"]
            for s in skips[:_SKIPS]
        ]
        more = f"The first {_SKIPS} of {total:,}; more stand in the JSON." if total > _SKIPS else ""
        parts.append(table(["step", "scale", "began in the", "layers"], rows) + (_said(more) if more else ""))
    return body + _beside(parts)


def _rates(report: dict[str, Any]) -> Markup:
    charts = [chart for chart in (rate_chart(report), loss_chart(report)) if chart]
    return _beside(charts) if charts else _said("No step was taken.")


def _underflow(report: dict[str, Any]) -> Markup:
    under = report["underflow"]
    if not under["probes"]:
        scaled = report["loss_scale"]["scaled"]
        why = "No backward pass was measured." if scaled else "Without a loss scale there is nothing to measure."
        return _said(why)
    last = under["probes"][-1]
    room = under["headroom_bits"]
    text = (
        "Share of each layer's gradient that float16 lost, measured against the same backward pass at a larger scale. "
        f"At step {last['step']:,}: {last['lost_norm']:.2%} of the whole gradient's norm; "
        f"{last['flushed_fraction']:.2%} of its values became zero."
    )
    more = "" if room is None else f" The scale could double {room:.0f} times before a gradient overflows."
    return _said(text + more) + underflow_map(under)


def _float32(report: dict[str, Any]) -> Markup:
    kept = report["float32"]
    words = {True: "yes", False: "NO", None: "-"}
    rows = [[e["layer"], e["type"], e["why"], words[e["verified"]]] for e in kept["layers"]]
    if not rows:
        return _said("None was kept in float32.")
    intro = "" if kept["kept_by"] else "None was kept on purpose; these are by nature."
    head = ["layer", "type", "why", "verified"]
    return (_said(intro) if intro else Markup("")) + table(head, rows)


def _gradients(report: dict[str, Any]) -> Markup:
    clip = report["gradients"]
    limits = ", ".join(f"{name} {value:g}" for name, value in clip["limits"].items())
    text = f"Clipped by {clip['clipped_by']} ({limits})." if clip["clipped_by"] else "Nothing was clipped."
    if clip["clipped_share"] is not None:
        text += f" {clip['clipped_share']:.1%} of {clip['steps']:,} steps."
    return _said(text) + gradient_chart(clip)


def _memory(report: dict[str, Any]) -> Markup:
    total = report["memory"]["gpu_total"]
    text = f"Of the GPU's {_size(total)}. " if total else ""
    chart = memory_chart(report["memory"])
    return _said(text + "Peaks so far, read on logging steps.") + chart if chart else _said("Not read.")


def _data(report: dict[str, Any]) -> Markup:
    data = report["data"]
    leaks = [[leak["column"], leak["auc"], leak["rows"]] for leak in report["leaks"]]
    body = table(["tells the label alone", "AUC", "rows"], leaks) if leaks else Markup("")
    if data is None:
        return body + _said("The Trainer has no datamodule with a feature store." + ("" if leaks else _COMPARED))
    gate = data["audit"]
    rows = ", ".join(f"{split} {count:,}" for split, count in data["rows"].items())
    judged = "none asked for"
    if gate is not None:
        score = "none" if gate["score"] is None else f"{gate['score']:.0f} of 100"
        cured = f"; cured: {', '.join(gate['cured'])}" if gate["cured"] else ""
        judged = f"{score} for {gate['policy']}, at least {gate['fail_under']:g}{cured}"
    facts = [["store", f"{data['store']}, version {data['version']}"], ["rows", rows], ["audit", judged],
             ["schema", data["digest"]]]  # fmt: skip
    columns = (gate or {}).get("columns", {})
    listed = [
        [
            f["name"],
            f["kind"],
            f["stored"],
            f["transform"],
            _score(columns.get(f["name"])),
            _words(columns.get(f["name"])),
        ]
        for f in data["features"][:_FEATURES]
    ]
    head = ["feature", "kind", "stored as", "transform", "score", "audit"]
    return body + table(["what", "value"], facts) + table(head, listed)


_COMPARED: Final = " No column of the first batches tells the label alone, as far as the batches have a label."


def _export(report: dict[str, Any]) -> Markup:
    export = report["export"]
    if export is None:
        return _said("No `OnnxExport` in this run; `lightning-mp export` makes a bundle of a checkpoint.")
    if export["parity"] is None:
        return _said(f"No bundle was written ({export['asked']} was asked for).")
    rows = [[name, value] for name, value in export["parity"].items()]
    return _said(f"{export['bundle']}, precision {export['precision']}, compared with the trained module:") + table(
        ["parity", "value"], rows
    )


def _run(report: dict[str, Any]) -> Markup:
    run = report["run"]
    names = ("began", "seconds", "epochs", "steps", "parameters", "strategy", "processes")
    rows = [[n, str(run[n]) if not isinstance(run[n], int) else f"{run[n]:,}"] for n in names if run[n] is not None]
    rows += [["callbacks", ", ".join(run["callbacks"])]]
    rows += [["versions", ", ".join(f"{name} {version}" for name, version in run["versions"].items())]]
    return table(["what", "value"], rows)


def _beside(parts: list[Markup]) -> Markup:
    form = Markup("<div>{}</div>")
    return Markup('<div class="beside">{}</div>').format(Markup("").join(form.format(part) for part in parts))


def _said(text: str) -> Markup:
    return Markup("<p>{}</p>").format(prose(text))


def _score(column: dict[str, Any] | None) -> object:
    return None if column is None or column.get("score") is None else round(column["score"])


def _words(column: dict[str, Any] | None) -> str:
    found = (column or {}).get("findings", [])
    return "; ".join(str(word) for word in found) if isinstance(found, list) and found else "-"


def _power(scale: float | None) -> str:
    """Large and small powers of two as such."""
    if scale is None:
        return "-"
    exponent = math.log2(scale) if scale > 0 else 0.5
    return f"2^{exponent:g}" if exponent.is_integer() and abs(exponent) >= 14 else f"{scale:,g}"


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
