"""Lists of raw values to rows of a vocabulary, as nodes of a graph."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT, Vocabulary
from lightning_mp.export.graph_nodes import GraphNodes
from lightning_mp.export.raw_features import datatype
from lightning_mp.schema import Feature

_FAR: Final = 2**40  # beyond any place in a list


def looked_up(graph: GraphNodes, feature: Feature, vocabulary: Vocabulary, mode: str | int | None = None) -> str:
    """Add the look-up of raw values: rows of the vocabulary, 0 where missing, -1 where it does not hold the value.

    Args:
        graph: To add to.
        feature: An id, a category, or a list of such.
        vocabulary: Its own.
        mode: What a missing value is taken for.

    Returns:
        Name of the rows, int64, of the input's shape.
    """
    from onnx import TensorProto, helper

    if datatype(feature) == "BYTES":
        # The missing value is a key too, so that an empty vocabulary still makes a valid node.
        keys = [MISSING_TEXT, *vocabulary.entries.tolist()]
        table = helper.make_tensor("keys", TensorProto.STRING, [len(keys)], [key.encode() for key in keys])
    else:
        keys = [MISSING_INTEGER, *vocabulary.entries.tolist()]
        table = helper.make_tensor("keys", TensorProto.INT64, [len(keys)], np.array(keys, dtype=np.int64))
    places = np.arange(len(keys), dtype=np.int64)
    if mode is not None:
        places[0] = vocabulary.encode([mode])[0]  # type: ignore[arg-type]  # of the type of the entries
    rows = helper.make_tensor("rows", TensorProto.INT64, [len(keys)], places)
    unknown = helper.make_tensor("unknown", TensorProto.INT64, [1], [-1])
    attributes = {"keys_tensor": table, "values_tensor": rows, "default_tensor": unknown}
    return graph.add("LabelEncoder", [feature.name], f"encoded/{feature.name}/row", attributes)


def list_rows(graph: GraphNodes, feature: Feature, vocabulary: Vocabulary) -> tuple[str, str]:
    """Add the look-up of a list: missing entries passed over, cut to the longest length, padded with 0.

    Of a category's list the first entries count, and zeros stand behind them. Of a sequence the last ones that the
    vocabulary holds count, and zeros stand in front.

    Args:
        graph: To add to.
        feature: Of kind `multi_categorical` or `sequence`; its input has the shape (batch, any length).
        vocabulary: Of its entries.

    Returns:
        Names of the rows, int64 (batch, `feature.width`), and of whether an entry of the list is unknown, bool
        (batch, 1).
    """
    from onnx import TensorProto

    here, longest = f"encoded/{feature.name}", feature.width
    room = graph.constant(np.array([0, 0, 0, longest], dtype=np.int64), f"{here}/room")
    rows = graph.add("Pad", [looked_up(graph, feature, vocabulary), room, "encoded/first_row"], f"{here}/padded")
    lost = graph.add("Less", [rows, "encoded/first_row"], f"{here}/lost")
    counts = graph.add("Cast", [lost], f"{here}/lost_int", {"to": TensorProto.INT64})
    any_lost = graph.add("ReduceMax", [counts, "encoded/axis"], f"{here}/any_lost", {"keepdims": 1})
    flag = graph.add("Cast", [any_lost], f"{here}/unknown", {"to": TensorProto.BOOL})
    if feature.kind == "sequence":
        known = graph.add("Max", [rows, "encoded/first_row"], f"{here}/known")
        return _picked(graph, known, longest, here=here, last=True), flag
    kept = _picked(graph, rows, longest, here=here, last=False)
    return graph.add("Max", [kept, "encoded/first_row"], f"{here}/list"), flag


def _picked(graph: GraphNodes, rows: str, longest: int, *, here: str, last: bool) -> str:
    """The first or the last entries that are not 0, in their order, zeros behind them or in front."""
    size = graph.add("Shape", [rows], f"{here}/size", {"start": 1, "end": 2})
    scalar = graph.constant(np.array([], dtype=np.int64), f"{here}/scalar")
    length = graph.add("Reshape", [size, scalar], f"{here}/length")
    step = graph.constant(np.array(1, dtype=np.int64), f"{here}/step")
    place = graph.add("Range", ["encoded/first_row", length, step], f"{here}/place")
    away = graph.constant(np.array(-_FAR if last else _FAR, dtype=np.int64), f"{here}/away")
    moved = graph.add("Add", [place, away], f"{here}/moved")
    absent = graph.add("Equal", [rows, "encoded/first_row"], f"{here}/empty")
    order = graph.add("Where", [absent, moved, place], f"{here}/order")
    count = graph.constant(np.array([longest], dtype=np.int64), f"{here}/count")
    graph.nodes.append(_top(order, count, f"{here}/keys", f"{here}/chosen", last=last))
    found = graph.add("GatherElements", [rows, f"{here}/chosen"], f"{here}/found", {"axis": 1})
    if not last:
        return found
    bounds = [
        graph.constant(np.array([value], dtype=np.int64), f"{here}/{name}")
        for name, value in (("start", -1), ("end", -(2**62)), ("axes", 1), ("back", -1))
    ]
    return graph.add("Slice", [found, *bounds], f"{here}/in_order")


def _top(order: str, count: str, keys: str, chosen: str, *, last: bool) -> Any:
    from onnx import helper

    return helper.make_node("TopK", [order, count], [keys, chosen], name=chosen, axis=1, largest=int(last), sorted=1)
