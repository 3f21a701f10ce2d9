"""Raw named values to encoded inputs, as a graph: vocabularies, missing-value rules, transforms, rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT, Vocabulary
from lightning_mp.errors import ConfigurationError
from lightning_mp.export.graph_nodes import GraphNodes
from lightning_mp.export.list_graph import list_rows, looked_up
from lightning_mp.export.missing_fills import NO_FILLS, MissingFills
from lightning_mp.export.raw_features import LISTS, UNKNOWN, datatype, item_key, raw_inputs
from lightning_mp.export.transform_graph import transformed
from lightning_mp.float_formats import FLOAT16, FLOAT32
from lightning_mp.manifest import RawInput
from lightning_mp.schema import Feature, FeatureSchema

ML_OPSET: Final = 4
IR_VERSION: Final = 10
ENCODED: Final = "encoded/"
"""Before the name of an input of `model.onnx`: the encoder's output that goes into it."""
MOST_KEY_BYTES: Final = 2**31 - 2**26
"""An ONNX file holds at most 2 GB beside its external weights; keys of vocabularies cannot lie outside."""
LARGEST: Final = {"float16": FLOAT16.largest, "float32": FLOAT32.largest}


def encoder_graph(
    schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], opset: int, fills: MissingFills = NO_FILLS
) -> Any:
    """Make the graph that encodes raw values as training did, to the bit.

    Ids and categories go through their vocabularies, unknown and missing ones to row 0, missing ones with a mode to
    its row. Of a list missing entries are passed over, and what is beyond its longest length is cut (`list_rows`).
    An indicator is 1 where its feature is missing, whatever the row says of it. Numbers are computed in double: the
    missing-value rule, the transform, then the nearest number of the stored type, whose range they are clipped to, and
    at last float32.

    Args:
        schema: The features.
        vocabularies: Of every id, category and list, by name.
        opset: Of the default domain.
        fills: What stands in for missing values beyond the schema.

    Returns:
        An `onnx.ModelProto` with one input a feature, shape (batch,), (batch, d) for a vector, (batch, any length) for
        a list; and the outputs that the schema has of `encoded/ids` int64 (batch, F), `encoded/dense` float32
        (batch, D), `encoded/multi` int64 (batch, M, L), `encoded/history` int64 (batch, L), `encoded/target` int64
        (batch,), the row of the item's key, and `unknown` bool (batch, F + lists).

    Raises:
        ConfigurationError: The keys of the vocabularies are more than an ONNX file holds.
    """
    from onnx import TensorProto, helper

    types = {"BYTES": TensorProto.STRING, "INT64": TensorProto.INT64, "FP64": TensorProto.DOUBLE}
    _require_room(schema, vocabularies)
    graph = GraphNodes()
    columns, flags = _indexed(graph, schema, vocabularies, fills)
    lists, lost = _lists(graph, schema, vocabularies)
    absent = {name: _absent(graph, schema.feature(told)) for name, told in fills.indicators.items()}
    numbers = [column for feature in schema.dense for column in _numeric(graph, feature, absent.get(feature.name))]
    outputs = []

    def give(name: str, kind: int, *sizes: int) -> None:
        outputs.append(helper.make_tensor_value_info(name, kind, ["batch", *sizes]))

    if columns:
        graph.add("Concat", columns, f"{ENCODED}ids", {"axis": 1})
        give(f"{ENCODED}ids", TensorProto.INT64, len(columns))
    if item_key(schema) is not None:
        give(f"{ENCODED}target", TensorProto.INT64)
    if numbers:
        graph.add("Concat", numbers, f"{ENCODED}dense", {"axis": 1})
        give(f"{ENCODED}dense", TensorProto.FLOAT, schema.dense_width)
    for name, sizes in lists.items():
        give(name, TensorProto.INT64, *sizes)
    if flags or lost:
        graph.add("Concat", [*flags, *lost], UNKNOWN, {"axis": 1})
        give(UNKNOWN, TensorProto.BOOL, len(flags) + len(lost))
    inputs = [helper.make_tensor_value_info(i.name, types[i.datatype], _shape(i)) for i in raw_inputs(schema, fills)]
    body = helper.make_graph(graph.nodes, "encoder", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION, producer_name="lightning_mp")


def _shape(spec: RawInput) -> list[str | int]:
    return ["batch", *(f"{spec.name}/length" if size < 0 else size for size in spec.shape)]


def _indexed(
    graph: GraphNodes, schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], fills: MissingFills
) -> tuple[list[str], list[str]]:
    """Columns of `ids`, and of whether the value is unknown: a vocabulary answers -1 for what it does not hold."""
    columns, flags, key = [], [], item_key(schema)
    for feature in schema.ids:
        here = f"encoded/{feature.name}"
        row = looked_up(graph, feature, vocabularies[feature.name], fills.modes.get(feature.name))
        known = graph.add("Max", [row, "encoded/first_row"], f"{ENCODED}target" if feature is key else f"{here}/known")
        lost = graph.add("Less", [row, "encoded/first_row"], f"{here}/lost")
        columns.append(graph.add("Unsqueeze", [known, "encoded/axis"], f"{here}/column"))
        flags.append(graph.add("Unsqueeze", [lost, "encoded/axis"], f"{here}/lost_column"))
    return columns, flags


def _lists(
    graph: GraphNodes, schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary]
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Sizes of `multi` and `history` by name, as far as the schema has them, and columns of what is unknown."""
    found: dict[str, tuple[int, ...]] = {}
    several, flags = schema.of_kind("multi_categorical"), []
    widest, parts = max((feature.width for feature in several), default=0), []
    for feature in several:
        rows, flag = list_rows(graph, feature, vocabularies[feature.name])
        room = graph.constant(np.array([0, 0, 0, widest - feature.width], dtype=np.int64), f"{rows}/room")
        same = graph.add("Pad", [rows, room, "encoded/first_row"], f"{rows}/same")
        parts.append(graph.add("Unsqueeze", [same, "encoded/axis"], f"{rows}/column"))
        flags.append(flag)
    if parts:
        found[graph.add("Concat", parts, f"{ENCODED}multi", {"axis": 1})] = (len(parts), widest)
    for feature in schema.of_kind("sequence")[:1]:
        rows, flag = list_rows(graph, feature, vocabularies[feature.name])
        found[graph.add("Identity", [rows], f"{ENCODED}history")] = (feature.width,)
        flags.append(flag)
    return found, flags


def _require_room(schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary]) -> None:
    keyed = (*schema.ids, *schema.of_kind(*LISTS))
    sizes = {feature.name: _key_bytes(vocabularies[feature.name]) for feature in keyed}
    if sum(sizes.values()) > MOST_KEY_BYTES:
        name = max(sizes, key=sizes.__getitem__)
        raise ConfigurationError(
            f"the keys of all vocabularies take {sum(sizes.values()):,} bytes, an ONNX file holds {MOST_KEY_BYTES:,}; "
            f"those of `{name}` alone take {sizes[name]:,}",
            f"give `{name}` integer keys, or a `min_count` that leaves out rare ones",
        )


def _key_bytes(vocabulary: Vocabulary) -> int:
    """Bytes of the keys and of their rows in a protobuf."""
    entries = vocabulary.entries
    if not vocabulary.is_text:
        return 16 * len(entries)
    return sum(len(key.encode()) + 14 for key in entries.tolist())


def _absent(graph: GraphNodes, feature: Feature) -> str:
    """Whether a value was not given, bool (batch,)."""
    here = f"encoded/{feature.name}/absent"
    if feature.kind == "numeric":
        return graph.add("IsNaN", [feature.name], here)
    text = datatype(feature) == "BYTES"
    missing = np.array(MISSING_TEXT, dtype=np.object_) if text else np.array(MISSING_INTEGER)
    return graph.add("Equal", [feature.name, graph.constant(missing, f"{here}/value")], here)


def _numeric(graph: GraphNodes, feature: Feature, absent: str | None = None) -> list[str]:
    here, value = f"encoded/{feature.name}", feature.name
    if feature.missing_value is not None:
        graph.add("IsNaN", [value], f"{here}/missing")
        stand_in = graph.constant(np.array(float(feature.missing_value)), f"{here}/missing_value")
        value = graph.add("Where", [f"{here}/missing", stand_in, value], f"{here}/given")
    if absent is not None:
        value = graph.add("Where", [absent, "encoded/one", value], f"{here}/told")
    columns = transformed(graph, feature, value, here)
    wide = len(columns) > 1
    return [_stored(graph, feature, column, f"{here}[{i}]" if wide else here) for i, column in enumerate(columns)]


def _stored(graph: GraphNodes, feature: Feature, value: str, here: str) -> str:
    """The nearest number of the stored type, as float32."""
    from onnx import TensorProto

    largest = LARGEST[feature.stored_dtype]
    low, high = graph.constant(np.array(-largest), f"{here}/low"), graph.constant(np.array(largest), f"{here}/high")
    value = graph.add("Clip", [value, low, high], f"{here}/in_range")
    value = graph.add("Cast", [value], f"{here}/float32", {"to": TensorProto.FLOAT})
    if feature.stored_dtype == "float16":
        value = graph.add("Cast", [value], f"{here}/float16", {"to": TensorProto.FLOAT16})
        value = graph.add("Cast", [value], f"{here}/rounded", {"to": TensorProto.FLOAT})
    if feature.kind == "vector":
        return value
    return graph.add("Unsqueeze", [value, "encoded/axis"], f"{here}/column")
