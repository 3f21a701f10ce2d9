"""Raw named values to encoded inputs, as a graph: vocabularies, missing-value rules, transforms, rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lightning_mp.data.transforms import width
from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT, Vocabulary
from lightning_mp.errors import ConfigurationError
from lightning_mp.export.missing_fills import NO_FILLS, MissingFills
from lightning_mp.export.transform_graph import transformed
from lightning_mp.float_formats import FLOAT16, FLOAT32
from lightning_mp.manifest import Datatype, RawInput
from lightning_mp.schema import Feature, FeatureSchema

ML_OPSET: Final = 4
IR_VERSION: Final = 10
IDS: Final = "encoded/ids"
DENSE: Final = "encoded/dense"
UNKNOWN: Final = "unknown"
"""Output of `pipeline.onnx`, bool (batch, F): the value was given, and its vocabulary does not hold it."""
MOST_KEY_BYTES: Final = 2**31 - 2**26
"""An ONNX file holds at most 2 GB beside its external weights; keys of vocabularies cannot lie outside."""
_ROWS: Final = "encoded/rows"
_RESERVED: Final = ("encoded/", "model/")
LARGEST: Final = {"float16": FLOAT16.largest, "float32": FLOAT32.largest}


def raw_inputs(schema: FeatureSchema, fills: MissingFills = NO_FILLS) -> tuple[RawInput, ...]:
    """What a row may hold: one entry a feature, in schema order.

    Args:
        schema: The features.
        fills: What stands in for missing values beyond the schema.

    Raises:
        ConfigurationError: A feature is of a kind that cannot be exported yet, or its name is taken by an output.
    """
    inputs = []
    for feature in (f for f in schema.features if f.role in ("user", "item", "context")):
        if feature.kind not in ("id", "categorical", "numeric") or feature.width != width(feature.transform.kind):
            problem = f"feature `{feature.name}` is of kind `{feature.kind}`, which `pipeline.onnx` cannot encode"
            raise ConfigurationError(problem, "export a model of id, categorical and numeric features")
        if feature.name in ("logit", "score", UNKNOWN) or feature.name.startswith(_RESERVED):
            problem = f"feature `{feature.name}` has the name of a value inside the exported graph"
            raise ConfigurationError(problem, "give the feature another name")
        mode = fills.modes.get(feature.name) if feature.missing == "mode" else None
        required = (
            feature.missing == "refuse"
            or (feature.missing == "mode" and mode is None)
            or (feature.kind == "numeric" and feature.missing_value is None)
        )
        inputs.append(
            RawInput(name=feature.name, datatype=_datatype(feature), required=required, mode=mode,
                     derived_from=fills.indicators.get(feature.name))
        )  # fmt: skip
    return tuple(inputs)


def encoder_graph(
    schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], opset: int, fills: MissingFills = NO_FILLS
) -> Any:
    """Make the graph that encodes raw values as training did, to the bit.

    Ids and categories go through their vocabularies, unknown and missing ones to row 0, missing ones with a mode to
    its row. An indicator is 1 where its feature is missing, whatever the row says of it. Numbers are computed in
    double: the missing-value rule, the transform, then the nearest number of the stored type, whose range they are
    clipped to, and at last float32.

    Args:
        schema: The features.
        vocabularies: Of every id and categorical feature, by name.
        opset: Of the default domain.
        fills: What stands in for missing values beyond the schema.

    Returns:
        An `onnx.ModelProto` with one input a feature, shape (batch,), and the outputs `encoded/ids` int64 (batch, F),
        `encoded/dense` float32 (batch, D) and `unknown` bool (batch, F), those that the schema has.

    Raises:
        ConfigurationError: The keys of the vocabularies are more than an ONNX file holds.
    """
    from onnx import TensorProto, helper

    types = {"BYTES": TensorProto.STRING, "INT64": TensorProto.INT64, "FP64": TensorProto.DOUBLE}
    _require_room(schema, vocabularies)
    graph = _Nodes()
    columns = [
        _indexed(graph, feature, vocabularies[feature.name], fills.modes.get(feature.name)) for feature in schema.ids
    ]
    absent = {name: _absent(graph, schema.feature(told)) for name, told in fills.indicators.items()}
    numbers = [column for feature in schema.dense for column in _numeric(graph, feature, absent.get(feature.name))]
    outputs = []
    for name, parts, kind in ((IDS, columns, TensorProto.INT64), (DENSE, numbers, TensorProto.FLOAT)):
        if parts:
            graph.add("Concat", parts, _ROWS if name == IDS else name, axis=1)
            outputs.append(helper.make_tensor_value_info(name, kind, ["batch", len(parts)]))
    if columns:  # a vocabulary answers -1 for what it does not hold, 0 for what is missing
        first = graph.constant(np.array(0, dtype=np.int64), "encoded/first_row")
        graph.add("Max", [_ROWS, first], IDS)
        graph.add("Less", [_ROWS, first], UNKNOWN)
        outputs.append(helper.make_tensor_value_info(UNKNOWN, TensorProto.BOOL, ["batch", len(columns)]))
    inputs = [helper.make_tensor_value_info(i.name, types[i.datatype], ["batch"]) for i in raw_inputs(schema, fills)]
    body = helper.make_graph(graph.nodes, "encoder", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION, producer_name="lightning_mp")


def _require_room(schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary]) -> None:
    sizes = {feature.name: _key_bytes(vocabularies[feature.name]) for feature in schema.ids}
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


class _Nodes:
    """Nodes and constants of a graph that is being made."""

    def __init__(self) -> None:
        from onnx import NodeProto, TensorProto

        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.constant(np.array([1], dtype=np.int64), "encoded/axis")
        self.constant(np.array(0.0), "encoded/zero")
        self.constant(np.array(1.0), "encoded/one")

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        domain = "ai.onnx.ml" if operator == "LabelEncoder" else ""
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, domain=domain, **attributes))
        return output

    def constant(self, value: np.ndarray[Any, Any], name: str) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(value, name))
        return name


def _datatype(feature: Feature) -> Datatype:
    if feature.kind == "numeric":
        return "FP64"
    return "BYTES" if feature.source_dtype in ("string", "large_string") else "INT64"


def _absent(graph: _Nodes, feature: Feature) -> str:
    """Whether a value was not given, bool (batch,)."""
    here = f"encoded/{feature.name}/absent"
    if feature.kind == "numeric":
        return graph.add("IsNaN", [feature.name], here)
    text = _datatype(feature) == "BYTES"
    missing = np.array(MISSING_TEXT, dtype=np.object_) if text else np.array(MISSING_INTEGER)
    return graph.add("Equal", [feature.name, graph.constant(missing, f"{here}/value")], here)


def _indexed(graph: _Nodes, feature: Feature, vocabulary: Vocabulary, mode: str | int | None) -> str:
    from onnx import TensorProto, helper

    if _datatype(feature) == "BYTES":
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
    here = f"encoded/{feature.name}"
    graph.add("LabelEncoder", [feature.name], f"{here}/row", keys_tensor=table, values_tensor=rows,
              default_tensor=unknown)  # fmt: skip
    return graph.add("Unsqueeze", [f"{here}/row", "encoded/axis"], f"{here}/column")


def _numeric(graph: _Nodes, feature: Feature, absent: str | None = None) -> list[str]:
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


def _stored(graph: _Nodes, feature: Feature, value: str, here: str) -> str:
    """The nearest number of the stored type, as float32."""
    from onnx import TensorProto

    largest = LARGEST[feature.stored_dtype]
    low, high = graph.constant(np.array(-largest), f"{here}/low"), graph.constant(np.array(largest), f"{here}/high")
    value = graph.add("Clip", [value, low, high], f"{here}/in_range")
    value = graph.add("Cast", [value], f"{here}/float32", to=TensorProto.FLOAT)
    if feature.stored_dtype == "float16":
        value = graph.add("Cast", [value], f"{here}/float16", to=TensorProto.FLOAT16)
        value = graph.add("Cast", [value], f"{here}/rounded", to=TensorProto.FLOAT)
    return graph.add("Unsqueeze", [value, "encoded/axis"], f"{here}/column")
