"""What a row of raw values may hold, feature by feature."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_mp.data.transforms import width
from lightning_mp.errors import ConfigurationError
from lightning_mp.export.missing_fills import NO_FILLS, MissingFills
from lightning_mp.manifest import Datatype, RawInput
from lightning_mp.schema import Feature, FeatureSchema, Kind

LISTS: Final[tuple[Kind, ...]] = ("multi_categorical", "sequence")
HISTORY: Final = "history"
UNKNOWN: Final = "unknown"
"""Output of `pipeline.onnx`, bool (batch, F + lists): the value, or an entry of the list, was given, and its vocabulary
does not hold it."""
_RESERVED: Final = ("encoded/", "model/")


def raw_inputs(schema: FeatureSchema, fills: MissingFills = NO_FILLS) -> tuple[RawInput, ...]:
    """What a row may hold: one entry a feature, in schema order.

    Args:
        schema: The features.
        fills: What stands in for missing values beyond the schema.

    Raises:
        ConfigurationError: A feature cannot be encoded in a graph, or its name is taken by an output.
    """
    if len(schema.of_kind("sequence")) > 1:
        several = ", ".join(f"`{feature.name}`" for feature in schema.of_kind("sequence"))
        problem = f"a batch holds one `history`, and the schema has the sequences {several}"
        raise ConfigurationError(problem, "leave all but one out of the features")
    inputs = []
    for feature in (f for f in schema.features if f.role in ("user", "item", "context")):
        _require_encodable(feature)
        mode = fills.modes.get(feature.name) if feature.missing == "mode" else None
        number = feature.kind in ("numeric", "vector")
        required = feature.kind not in LISTS and (
            feature.missing == "refuse"
            or (feature.missing == "mode" and mode is None)
            or (number and feature.missing_value is None)
        )
        shape = {"vector": (feature.width,), "multi_categorical": (-1,), "sequence": (-1,)}.get(feature.kind, ())
        inputs.append(
            RawInput(name=feature.name, datatype=datatype(feature), required=required, mode=mode, shape=shape,
                     derived_from=fills.indicators.get(feature.name),
                     longest=feature.width if feature.kind in LISTS else None)
        )  # fmt: skip
    return tuple(inputs)


def datatype(feature: Feature) -> Datatype:
    """Type of a feature's raw values."""
    if feature.kind in ("numeric", "vector"):
        return "FP64"
    return "BYTES" if "string" in feature.source_dtype else "INT64"


def item_key(schema: FeatureSchema) -> Feature | None:
    """The one feature of kind `id` that names the item; `None` where there is none, or several."""
    keys = [feature for feature in schema.ids if feature.kind == "id" and feature.role == "item"]
    return keys[0] if len(keys) == 1 else None


def with_history(schema: FeatureSchema, length: int) -> FeatureSchema:
    """A schema that names the history a network takes: where it has no sequence, one of the item's keys is added.

    Args:
        schema: Of the store.
        length: Entries of the history that the network takes.

    Raises:
        ConfigurationError: The history can be of nothing: the schema names no item, or several.
    """
    if schema.of_kind("sequence"):
        return schema
    key = item_key(schema)
    if key is None or any(feature.name == HISTORY for feature in schema.features):
        raise ConfigurationError(
            "the network takes a `history`, and the schema has neither a sequence nor one id of the item",
            "name the item with one feature of kind `id`, or add a feature of kind `sequence`",
        )
    history = replace(key, name=HISTORY, kind="sequence", role="user", width=length, missing="unknown")
    return replace(schema, features=(*schema.features, history))


def _require_encodable(feature: Feature) -> None:
    columns = width(feature.transform.kind)
    if (feature.kind == "numeric" and feature.width != columns) or (feature.kind == "vector" and columns != 1):
        problem = (
            f"feature `{feature.name}` of kind `{feature.kind}` is {feature.width} columns wide, and its transform "
            f"`{feature.transform.kind}` gives {columns} a number: `pipeline.onnx` cannot encode it"
        )
        raise ConfigurationError(problem, "give it another transform")
    if feature.name in ("logit", "score", UNKNOWN) or feature.name.startswith(_RESERVED):
        problem = f"feature `{feature.name}` has the name of a value inside the exported graph"
        raise ConfigurationError(problem, "give the feature another name")
