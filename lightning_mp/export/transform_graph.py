"""The formulas of `lightning_mp.data.transforms.apply`, as nodes of a graph in double."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_mp.data.quantile_transform import knots_of
from lightning_mp.export.graph_nodes import GraphNodes
from lightning_mp.schema import Feature

_SCALED: Final = {
    "zscore": ("mean", "std"),
    "log1p_zscore": ("mean", "std"),
    "log1p_flag": ("mean", "std"),
    "robust_clip": ("mean", "std"),
    "linear": ("offset", "scale"),
}


def transformed(graph: GraphNodes, feature: Feature, value: str, here: str) -> list[str]:
    """Add a feature's transform.

    Args:
        graph: To add to.
        feature: A number, or a vector.
        value: Name of it, double, shape (batch,) or (batch, d).
        here: Prefix of the names inside.

    Returns:
        Names of what it becomes, double, each of the shape of `value`; two for `log1p_flag`.
    """
    kind, fitted = feature.transform.kind, feature.transform.constants
    value = _valid(graph, fitted, value, here)
    raw = value
    if kind == "signed_log":
        sign = graph.add("Sign", [value], f"{here}/sign")
        size = graph.add("Abs", [value], f"{here}/size")
        log = graph.add("Log", [graph.add("Add", [size, "encoded/one"], f"{here}/size1")], f"{here}/log")
        return [graph.add("Mul", [sign, log], f"{here}/signed_log")]
    if kind == "quantile":
        return [_quantile(graph, fitted, value, here)]
    if kind == "power_of_two":
        scale = graph.constant(np.array(fitted["scale"]), f"{here}/scale")
        return [graph.add("Mul", [value, scale], f"{here}/scaled")]
    if kind.startswith("log1p"):
        value = graph.add("Max", [value, "encoded/zero"], f"{here}/positive")
        value = graph.add("Log", [graph.add("Add", [value, "encoded/one"], f"{here}/plus1")], f"{here}/log")
    if kind == "robust_clip":
        low, high = (graph.constant(np.array(fitted[name]), f"{here}/fitted_{name}") for name in ("low", "high"))
        value = graph.add("Clip", [value, low, high], f"{here}/clipped")
    if kind in _SCALED:
        shift, scale = (graph.constant(np.array(fitted[name]), f"{here}/{name}") for name in _SCALED[kind])
        value = graph.add("Div", [graph.add("Sub", [value, shift], f"{here}/centred"), scale], f"{here}/scaled")
    if kind != "log1p_flag":
        return [value]
    from onnx import TensorProto

    is_zero = graph.add("Equal", [raw, "encoded/zero"], f"{here}/is_zero")
    value = graph.add("Where", [is_zero, "encoded/zero", value], f"{here}/size")
    return [value, graph.add("Cast", [is_zero], f"{here}/flag", {"to": TensorProto.DOUBLE})]


def _valid(graph: GraphNodes, fitted: dict[str, float], value: str, here: str) -> str:
    """Numbers outside the valid range become the one that stands in."""
    for name, operator in (("valid_from", "Less"), ("valid_to", "Greater")):
        if name in fitted:
            limit = graph.constant(np.array(fitted[name]), f"{here}/{name}")
            stand_in = graph.constant(np.array(fitted["stand_in"]), f"{here}/{name}/stand_in")
            outside = graph.add(operator, [value, limit], f"{here}/{name}/outside")
            value = graph.add("Where", [outside, stand_in, value], f"{here}/{name}/kept")
    return value


def _quantile(graph: GraphNodes, fitted: dict[str, float], value: str, here: str) -> str:
    """The place between two knots: how many knots are not above the number tells which ones."""
    from onnx import TensorProto

    x, y, slopes = knots_of(fitted)
    low, high = (graph.constant(np.array(x[at]), f"{here}/knot_{at}") for at in (0, -1))
    inside = graph.add("Clip", [value, low, high], f"{here}/inside")
    column = graph.add("Unsqueeze", [inside, "encoded/last"], f"{here}/inside_column")
    knots = graph.constant(x[None, 1:] if len(x) > 1 else np.full((1, 1), np.inf), f"{here}/knots")
    reached = graph.add("GreaterOrEqual", [column, knots], f"{here}/reached")
    counts = graph.add("Cast", [reached], f"{here}/reached_int", {"to": TensorProto.INT64})
    place = graph.add("ReduceSum", [counts, "encoded/last"], f"{here}/place", {"keepdims": 0})
    picked = [
        graph.add("Gather", [graph.constant(table, f"{here}/table_{name}"), place], f"{here}/{name}")
        for name, table in (("x", x), ("y", y), ("slope", slopes))
    ]
    away = graph.add("Sub", [inside, picked[0]], f"{here}/away")
    rise = graph.add("Mul", [away, picked[2]], f"{here}/rise")
    return graph.add("Add", [picked[1], rise], f"{here}/quantile")
