"""What an exported model folder holds: write it whole, open it only if it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_mp.artifacts import check_file, digest, new_folder
from lightning_mp.errors import ArtifactError, BundleError
from lightning_mp.schema import FeatureSchema

FORMAT = 1
MANIFEST = "manifest.json"
MODEL = "model.onnx"
PIPELINE = "pipeline.onnx"
PARITY = "parity.json"
SAMPLES = "sample_inputs.npz"
METADATA_KEY = "lightning_mp.manifest"
"""Key of both ONNX files' metadata under which the manifest stands again, without its `files`."""

Datatype = Literal["BYTES", "INT64", "FP64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawInput:
    """One input of `pipeline.onnx`, as a request names it.

    Args:
        name: The feature's name, and the name of the ONNX input; shape (batch,).
        datatype: `BYTES` for text (an ONNX string), `INT64`, or `FP64`, in the words of the Open Inference Protocol.
        required: Whether a row must carry it. One that is not takes the missing value of its type: `""`, the
            smallest int64, or NaN, for which the graph holds the rule.
    """

    name: str
    datatype: Datatype
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The truth about a bundle; it is written last, so a folder without one is not a bundle.

    Args:
        schema: The features, as the model was trained on them.
        inputs: Inputs of `pipeline.onnx`, in schema order.
        outputs: Outputs of both graphs, float32, shape (batch,) or (batch, tasks).
        task: What the score means: the chance of a click, or a preference between 0 and 1.
        model: Class of the module and of the network that was exported.
        precision: The policy asked for, and for each initializer of `model.onnx` its ONNX type by name.
        files: Size in bytes and sha256 of every other file of the folder, by name.
        versions: Packages that wrote the bundle.
        format: Of this record; a newer one is refused.
    """

    schema: FeatureSchema
    inputs: tuple[RawInput, ...]
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
            record["outputs"] = tuple(record["outputs"])
            return cls(**record)
        except (KeyError, TypeError) as error:
            raise BundleError(f"`{MANIFEST}` lacks a field or holds an unknown one: {error}", hint) from error


@dataclass(frozen=True, slots=True)
class Bundle:
    """An exported model folder that was found whole.

    Attributes:
        path: The folder.
        manifest: What it says of itself.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> Bundle:
        """Open a bundle.

        Args:
            path: The folder.
            verify: Compare the digest of every file; sizes are compared in any case.

        Raises:
            BundleError: The folder or its manifest is missing, or a file is missing, cut short, or altered.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise BundleError(
                f"`{folder}` is not a folder", "give the folder that `lightning-mp fit` wrote its bundle to"
            )
        manifest_path = folder / MANIFEST
        if not manifest_path.is_file():
            raise BundleError(f"`{folder}` holds no `{MANIFEST}`: it is not a bundle", "export the model again")
        bundle = cls(folder, Manifest.from_json(manifest_path.read_text(encoding="utf-8")))
        bundle.verify(digests=verify)
        return bundle

    def verify(self, *, digests: bool = True) -> None:
        """Check every file against the manifest.

        Raises:
            BundleError: One is missing, cut short, or altered, or lies outside the folder.
        """
        for name, entry in self.manifest.files.items():
            if Path(name).name != name or name == "..":
                raise BundleError(
                    f"`{self.path}`: the manifest names `{name}`, which leaves the folder", "do not use it"
                )
            if (self.path / name).is_symlink():
                raise BundleError(f"`{self.path / name}` is a symbolic link", "copy the file itself")
            try:
                check_file(self.path / name, size=entry["size"], sha256=entry["sha256"] if digests else None)
            except ArtifactError as error:
                raise BundleError(error.problem, error.hint) from error

    @property
    def model(self) -> Path:
        """`model.onnx`: encoded inputs (`ids`, `dense`) to `logit` and `score`."""
        return self.path / MODEL

    @property
    def pipeline(self) -> Path:
        """`pipeline.onnx`: raw named inputs to `logit` and `score`."""
        return self.path / PIPELINE


@contextmanager
def writing(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Fill a bundle's folder; it appears under its name when `seal` has been called and the block ends.

    Args:
        path: The folder.
        overwrite: Replace a bundle that is there; nothing else is ever replaced.

    Raises:
        BundleError: The block ended without a manifest.
        ArtifactError: The folder is there already, or cannot be written.
    """
    require_free(path, overwrite=overwrite)
    with new_folder(path, overwrite=Path(path).is_dir()) as folder:
        yield folder
        if not (folder / MANIFEST).is_file():
            raise BundleError(f"`{path}` was written without a `{MANIFEST}`", "call `seal` at the end")


def require_free(path: str | Path, *, overwrite: bool = False) -> None:
    """Refuse a place where a bundle cannot be written, before the work that it is for.

    Args:
        path: The folder to write.
        overwrite: Whether a bundle may stand there.

    Raises:
        ArtifactError: Something else stands there, or the folder above it cannot be written to.
    """
    folder = Path(path)
    if folder.is_dir() and any(folder.iterdir()) and not (overwrite and (folder / MANIFEST).is_file()):
        what = "a bundle" if (folder / MANIFEST).is_file() else "a folder with other files"
        raise ArtifactError(f"`{folder}` is there already: {what}", "give another path, or remove it first")
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"`{folder}` is a file, a bundle is a folder", "give another path")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ArtifactError(f"`{folder}` cannot be written: no permission in `{above}`", "give another path")


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest, with size and digest of every file that lies in `folder`.

    Returns:
        The manifest as written.
    """
    files: Mapping[str, dict[str, Any]] = {
        file.name: {"size": file.stat().st_size, "sha256": digest(file)}
        for file in sorted(folder.iterdir())
        if file.name != MANIFEST
    }
    record = {name: getattr(manifest, name) for name in manifest.__slots__}
    sealed = Manifest(**{**record, "files": dict(files)})
    (folder / MANIFEST).write_text(sealed.to_json(), encoding="utf-8")
    return sealed
