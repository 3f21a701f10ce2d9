"""The manifest of a bundle: what its graphs take and give, in which precision, from which files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lightning_mp.errors import BundleError
from lightning_mp.schema import FeatureSchema

FORMAT = 1
MANIFEST = "manifest.json"
METADATA_KEY = "lightning_mp.manifest"
"""Key of both ONNX files' metadata under which the manifest stands again, without its `files`."""

Datatype = Literal["BYTES", "INT64", "FP64"]
TensorType = Literal["INT64", "FP32", "BOOL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawInput:
    """One input of `pipeline.onnx`, as a request names it.

    Args:
        name: The feature's name, and the name of the ONNX input; shape (batch,).
        datatype: `BYTES` for text (an ONNX string), `INT64`, or `FP64`, in the words of the Open Inference Protocol.
        required: Whether a row must carry it. One that is not takes the missing value of its type: `""`, the
            smallest int64, or NaN, for which the graph holds the rule.
        mode: What the graph takes for a missing category with the rule `mode`: the mode of all training rows. Modes by
            group, which training asked first, are not in the graph.
        derived_from: Of an indicator: the input whose absence it tells. Left out, it is 1 where that input is missing,
            else 0.
    """

    name: str
    datatype: Datatype
    required: bool = False
    mode: str | int | None = None
    derived_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInput:
    """One input of `model.onnx`.

    Args:
        name: Name of the ONNX input.
        datatype: In the words of the Open Inference Protocol.
        shape: Of one row; empty for one number a row.
    """

    name: str
    datatype: TensorType
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The truth about a bundle; it is written last, so a folder without one is not a bundle.

    Args:
        schema: The features, as the model was trained on them; without any where the module had no schema.
        inputs: Inputs of `pipeline.onnx`, in schema order; none where there is no such file.
        tensors: Inputs of `model.onnx`.
        outputs: Outputs of both graphs, float32, shape (batch,) or (batch, tasks). `pipeline.onnx` also gives
            `unknown`, bool (batch, F): which ids and categories, in schema order, were given and in no vocabulary.
        task: What the score means: the chance of a click, or a preference between 0 and 1.
        model: Class of the module and of the network that was exported.
        precision: The policy asked for, and for each initializer of `model.onnx` its ONNX type by name.
        files: Size in bytes and sha256 of every other file of the folder, by name.
        versions: Packages that wrote the bundle.
        format: Of this record; a newer one is refused.
    """

    schema: FeatureSchema
    inputs: tuple[RawInput, ...]
    tensors: tuple[TensorInput, ...] = ()
    outputs: tuple[str, ...] = ("logit", "score")
    task: str = "click"
    model: dict[str, str] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        """Indented JSON with sorted keys."""
        record = {**asdict(self), "schema": json.loads(self.schema.to_json())}
        for entry in record[
            "inputs"
        ]:  # left out where it says nothing, as bundles had it before there was such a field
            for name in ("mode", "derived_from"):
                if entry[name] is None:
                    del entry[name]
        return json.dumps(record, indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises:
            BundleError: It is not a manifest, or of a newer format.
        """
        hint = "export the model again with `lightning-mp export`"
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise BundleError(f"`{MANIFEST}` is not JSON: {error}", hint) from error
        if not isinstance(record, dict) or not isinstance(record.get("format"), int):
            raise BundleError(f"`{MANIFEST}` names no format", hint)
        if record["format"] > FORMAT:
            raise BundleError(
                f"the bundle is of format {record['format']}, this package reads up to {FORMAT}",
                "install the version of lightning-mp that wrote it",
            )
        try:
            record["schema"] = FeatureSchema.from_json(json.dumps(record["schema"]))
            record["inputs"] = tuple(RawInput(**entry) for entry in record["inputs"])
            tensors = ({**entry, "shape": tuple(entry["shape"])} for entry in record.get("tensors", ()))
            record["tensors"] = tuple(TensorInput(**entry) for entry in tensors)
            record["outputs"] = tuple(record["outputs"])
            return cls(**record)
        except (KeyError, TypeError) as error:
            raise BundleError(f"`{MANIFEST}` lacks a field or holds an unknown one: {error}", hint) from error
