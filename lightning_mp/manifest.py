"""The manifest of a bundle: what its graphs take and give, in which precision, from which files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from lightning_mp.errors import BundleError, SchemaError
from lightning_mp.schema import FeatureSchema

FORMAT = 1
MANIFEST = "manifest.json"
METADATA_KEY = "lightning_mp.manifest"
"""Key of both ONNX files' metadata under which the manifest stands again, without its `files`."""

_DIGEST = "manifest_sha256"
_AGAIN = "export the model again with `lightning-mp export`"

Datatype = Literal["BYTES", "INT64", "FP64"]
TensorType = Literal["INT64", "FP32", "BOOL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawInput:
    """One input of `pipeline.onnx`, as a request names it.

    Args:
        name: The feature's name, and the name of the ONNX input, whose shape is (batch,) and `shape`.
        datatype: `BYTES` for text (an ONNX string), `INT64`, or `FP64`, in the words of the Open Inference Protocol.
        required: Whether a row must carry it. One that is not takes the missing value of its type: `""`, the
            smallest int64, or NaN, for which the graph holds the rule.
        mode: What the graph takes for a missing category with the rule `mode`: the mode of all training rows. Modes by
            group, which training asked first, are not in the graph.
        derived_from: Of an indicator: the input whose absence it tells. Left out, it is 1 where that input is missing,
            else 0.
        shape: Of one row: empty for one value, `(d,)` for a vector, `(-1,)` for a list of any length, in which missing
            values are passed over.
        longest: Entries of a list that count: the first ones, of a sequence the last ones.
    """

    name: str
    datatype: Datatype
    required: bool = False
    mode: str | int | None = None
    derived_from: str | None = None
    shape: tuple[int, ...] = ()
    longest: int | None = None

    @property
    def is_list(self) -> bool:
        """Whether a row holds a list of any length."""
        return self.shape == (-1,)


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
            `unknown`, bool (batch, F): which ids and categories, in schema order, were given and in no vocabulary, and
            then which lists have such an entry.
        tasks: Names of the columns of the outputs where they are (batch, tasks); none where they are (batch,).
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
    tasks: tuple[str, ...] = ()
    task: str = "click"
    model: dict[str, str] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        """Indented JSON with sorted keys."""
        record = {**asdict(self), "schema": json.loads(self.schema.to_json())}
        # Left out where it says nothing, as bundles had it before there was such a field.
        for entry in record["inputs"]:
            for name in ("mode", "derived_from", "shape", "longest"):
                if entry[name] in (None, ()):
                    del entry[name]
        if not self.tasks:
            del record["tasks"]
        return json.dumps(record, indent=2, sort_keys=True, allow_nan=False)

    def sealed_json(self) -> str:
        """`to_json` with the sha256 of itself, as it stands in the bundle's folder."""
        return _sealed(json.loads(self.to_json()))

    @classmethod
    def from_json(cls, text: str | bytes, *, sealed: bool = False) -> Manifest:
        """Read what `to_json` or `sealed_json` wrote.

        Args:
            text: Bytes are UTF-8.
            sealed: Refuse what is not, to the byte, what `sealed_json` wrote.

        Raises:
            BundleError: It is not a manifest, is of a newer format, or was altered.
        """
        try:
            text = text.decode("utf-8") if isinstance(text, bytes) else text
            record = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or a number of thousands of digits
            raise BundleError(f"`{MANIFEST}` is not JSON: {error}", _AGAIN) from error
        if not isinstance(record, dict) or type(record.get("format")) is not int:
            raise BundleError(f"`{MANIFEST}` names no format", _AGAIN)
        if record["format"] > FORMAT:
            raise BundleError(
                f"the bundle is of format {record['format']}, this package reads up to {FORMAT}",
                "install the version of lightning-mp that wrote it",
            )
        told = record.pop(_DIGEST, None)
        try:
            fault = _mistyped(record, cls, "manifest") or _incomplete(record)
            if fault:
                raise BundleError(f"`{MANIFEST}`: {fault}", _AGAIN)
            if sealed and text != _sealed(record):
                why = "does not match its own digest" if told else f"has no `{_DIGEST}`"
                raise BundleError(f"`{MANIFEST}` {why}: it was altered", _AGAIN)
            record["schema"] = FeatureSchema.from_json(json.dumps(record["schema"]))
            inputs = ({**entry, "shape": tuple(entry.get("shape", ()))} for entry in record["inputs"])
            record["inputs"] = tuple(RawInput(**entry) for entry in inputs)
            tensors = ({**entry, "shape": tuple(entry["shape"])} for entry in record.get("tensors", ()))
            record["tensors"] = tuple(TensorInput(**entry) for entry in tensors)
            record["outputs"], record["tasks"] = tuple(record["outputs"]), tuple(record.get("tasks", ()))
            return cls(**record)
        except SchemaError as error:
            raise BundleError(f"`{MANIFEST}`: {error.problem}", error.hint) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"`{MANIFEST}` lacks a field or holds an unknown one: {error}", _AGAIN) from error
        except (ValueError, RecursionError) as error:  # a number beyond float64, or a nesting beyond Python's
            raise BundleError(f"`{MANIFEST}` cannot be read: {error}", _AGAIN) from error


def _sealed(record: dict[str, Any]) -> str:
    canonical = json.dumps(record, indent=2, sort_keys=True, allow_nan=False)
    sha256 = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps({**record, _DIGEST: sha256}, indent=2, sort_keys=True, allow_nan=False)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _mistyped(value: Any, hint: Any, place: str) -> str | None:
    """The first place where a value of JSON is not of the type of the field that it is for."""
    origin, among = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(value, dict):
        hints = get_type_hints(hint)
        found = (_mistyped(value[name], hints[name], f"{place}.{name}") for name in value if name in hints)
        return next((fault for fault in found if fault), None)
    if origin is dict and isinstance(value, dict):
        found = (_mistyped(entry, among[1], f"{place}[{name!r}]") for name, entry in value.items())
        return next((fault for fault in found if fault), None)
    if origin is tuple and isinstance(value, list):
        found = (_mistyped(entry, among[0], f"{place}[{index}]") for index, entry in enumerate(value))
        return next((fault for fault in found if fault), None)
    if origin is UnionType:
        fits = any(_mistyped(value, one, place) is None for one in among)
    elif origin is Literal:
        fits = isinstance(value, str) and value in among
    elif hint is float:
        fits = type(value) in (int, float)
    else:
        fits = hint is Any or (hint in (str, int, bool, NoneType) and type(value) is hint)
    return None if fits else f"`{place}` cannot be {_short(value)}"


def _incomplete(record: dict[str, Any]) -> str | None:
    for name, entry in record.get("files", {}).items():
        size, sha256 = entry.get("size"), entry.get("sha256")
        if type(size) is not int or size < 0 or not isinstance(sha256, str) or len(sha256) != 64:
            return f"`files[{name!r}]` needs a `size` and a `sha256`, it holds {_short(entry)}"
    precision = record.get("precision", {})
    hints = {"settings": dict[str, Any], "initializers": dict[str, str], "layers": dict[str, Any], "used": str}
    found = (_mistyped(precision[key], hint, f"precision.{key}") for key, hint in hints.items() if key in precision)
    return next((fault for fault in found if fault), None)


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:60]}…"
