"""What an exported model folder holds: write it whole, open it only if it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_mp.artifacts import check_file, digest, new_folder
from lightning_mp.errors import ArtifactError, BundleError
from lightning_mp.manifest import MANIFEST, Manifest

MODEL = "model.onnx"
PIPELINE = "pipeline.onnx"
PARITY = "parity.json"
SAMPLES = "sample_inputs.npz"
TABLES = "tables"
"""Folder of the latest features by key, for serving."""


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
            path: The folder, or a symbolic link to it.
            verify: Compare the digest of every file; sizes are compared in any case.

        Raises:
            BundleError: The folder or its manifest is missing, or a file is missing, cut short, or altered.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise BundleError(
                f"`{folder}` is not a folder", "give the folder that `lightning-mp fit` wrote its bundle to"
            )
        if folder.is_symlink():  # followed once: a link that is switched meanwhile cannot mix two bundles
            folder = folder.resolve()
        manifest_path = folder / MANIFEST
        try:
            _require_no_link(manifest_path)
            if not manifest_path.is_file():
                raise BundleError(f"`{folder}` holds no `{MANIFEST}`: it is not a bundle", "export the model again")
            content = manifest_path.read_bytes()
        except BundleError:  # an OSError too
            raise
        except OSError as error:
            raise BundleError(f"`{manifest_path}` cannot be read: {error.strerror}", "give yourself access") from error
        bundle = cls(folder, Manifest.from_json(content, sealed=True))
        bundle.verify(digests=verify)
        return bundle

    def verify(self, *, digests: bool = True) -> None:
        """Check every file against the manifest.

        Raises:
            BundleError: One is missing, cut short, or altered, or lies outside the folder.
        """
        for name, entry in self.manifest.files.items():
            parts = PurePosixPath(name).parts
            inside = parts[:-1] in ((), (TABLES,)) and parts[-1:] != ("..",) and "\\" not in name
            if not inside or PurePosixPath(name).as_posix() != name:
                raise BundleError(
                    f"`{self.path}`: the manifest names {name[:80]!r}, which leaves the folder", "do not use it"
                )
            file = self.path / name
            try:
                _require_no_link(file.parent if len(parts) > 1 else file)
                _require_no_link(file)
                check_file(file, size=entry["size"], sha256=entry["sha256"] if digests else None)
            except ArtifactError as error:
                raise BundleError(error.problem, error.hint) from error
            except (OSError, ValueError) as error:  # a name that no file can have
                problem = f"`{self.path}`: the manifest names {name[:80]!r}, which cannot be looked up"
                raise BundleError(problem, "do not use it") from error

    @property
    def model(self) -> Path:
        """`model.onnx`: encoded inputs (`ids`, `dense`) to `logit` and `score`."""
        return self.path / MODEL

    @property
    def has_pipeline(self) -> bool:
        """Whether there is a `pipeline.onnx`: a module without a `FeatureSchema` is exported without."""
        return PIPELINE in self.manifest.files

    @property
    def pipeline(self) -> Path:
        """`pipeline.onnx`: raw named inputs to `logit` and `score`."""
        return self.path / PIPELINE


def _require_no_link(file: Path) -> None:
    if file.is_symlink():
        raise BundleError(f"`{file}` is a symbolic link", "copy the file itself")
    if file.is_file() and file.stat().st_nlink > 1:
        problem = f"`{file}` is a hard link: it can be altered under another name after it was checked"
        raise BundleError(problem, "copy the file itself: `cp -r --no-preserve=links`")


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
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": digest(file)}
        for file in sorted(folder.rglob("*"))
        if file.name != MANIFEST and file.is_file()
    }
    sealed = replace(manifest, files=dict(files))
    (folder / MANIFEST).write_bytes(sealed.sealed_json().encode())
    return sealed
