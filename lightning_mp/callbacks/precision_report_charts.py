"""The pictures of a report."""

from __future__ import annotations

import math
from typing import Any, Final

from markupsafe import Markup

from lightning_mp.html_page.heat_map import heat_map
from lightning_mp.html_page.line_chart import Line, line_chart

_MAPPED: Final = 16
_WIDE: Final = 64


def scale_chart(scale: dict[str, Any]) -> Markup:
    """The loss scale over the steps, a cross at each skipped one."""
    points = _points(scale["series"])
    marks = [(float(skip["step"]), float(skip["scale"])) for skip in scale["skips"]]
    lines = [Line(name="loss scale", points=points)]
    if marks:
        lines.append(Line(name=f"x: {scale['skipped']:,} skipped steps", points=[], marks=marks))
    if not any(value > 0 for _, value in (*points, *marks)):
        return Markup("")
    return line_chart(lines, title="Loss scale", x_label="optimizer step", y_label="scale", log2_y=True)


def rate_chart(report: dict[str, Any]) -> Markup:
    """Learning rates of the optimizers."""
    lines = [Line(name=name, points=_points(curve)) for name, curve in report["learning_rate"].items()]
    return _chart(lines, title="Learning rate", y_label="learning rate")


def loss_chart(report: dict[str, Any]) -> Markup:
    """Losses of training and validation."""
    losses = {n: curve for n, curve in report["metrics"].items() if n.endswith("loss")}
    lines = [Line(name=n, points=_points(c)) for n, c in list(losses.items())[:4]]
    values = [value for line in lines for _, value in line.points]
    wide = bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)
    return _chart(lines, title="Loss", y_label="loss", log2_y=wide)  # else one outlier makes a flat line of the rest


def gradient_chart(gradients: dict[str, Any]) -> Markup:
    """The norm of the gradients, and where it is clipped."""
    points = _points(gradients["norm"])
    lines = [Line(name="norm of the gradients before clipping", points=points)]
    limit = gradients["limits"].get("max_norm")
    if limit is not None and points:
        lines.append(Line(name=f"clipped above {limit:g}", points=[(points[0][0], limit), (points[-1][0], limit)]))
    return _chart(lines, title="Gradients", y_label="2-norm")


def memory_chart(memory: dict[str, Any]) -> Markup:
    """Peaks of the process and of the GPU."""
    names = {"gpu": "allocated on the GPU, peak", "resident": "resident set of the process, peak"}
    lines = [
        Line(name=names[key], points=[(step, value / 2**30) for step, value in _points(memory[key])])
        for key in names
        if memory[key]
    ]
    return _chart(lines, title="Memory", y_label="GiB")


def underflow_map(under: dict[str, Any]) -> Markup:
    """Layers by measurement: the worst ones, worst first."""
    probes = under["probes"]
    worst: dict[str, float] = {}
    for probe in probes:
        for layer, lost in probe["layers"].items():
            worst[layer] = max(lost, worst.get(layer, 0.0))
    layers = sorted(worst, key=lambda layer: -worst[layer])[:_MAPPED]
    if not layers:
        return Markup("")
    rows = [(layer, [probe["layers"].get(layer) for probe in probes]) for layer in layers]
    columns = [f"{probe['step']:,}" for probe in probes]
    shown = "" if len(worst) <= _MAPPED else f", the {_MAPPED} worst of {len(worst)} layers"
    return heat_map(rows, columns, title=f"Lost of the gradient{shown}", x_label="optimizer step")


def _chart(lines: list[Line], *, title: str, y_label: str, log2_y: bool = False) -> Markup:
    drawn = [line for line in lines if any(math.isfinite(value) for _, value in line.points)]
    if not drawn:
        return Markup("")
    return line_chart(drawn, title=title, x_label="optimizer step", y_label=y_label, log2_y=log2_y)


def _points(curve: dict[str, Any] | None) -> list[tuple[float, float]]:
    return [] if curve is None else [(float(s), float(v)) for s, v in zip(curve["steps"], curve["values"], strict=True)]
