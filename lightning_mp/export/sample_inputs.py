"""A few raw rows with the answers they must get, kept in the bundle."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.errors import BundleError
from lightning_mp.manifest import RawInput, TensorInput

_INPUT = "input/"
_TENSOR = "tensor/"


def write_samples(
    path: Path,
    raw: Mapping[str, NDArray[Any]],
    logit: NDArray[np.float32],
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write raw rows with their logits, and encoded rows; text is stored as text, never pickled.

    Args:
        path: The file to write.
        raw: Inputs of `pipeline.onnx`, or of `model.onnx` in a bundle without one.
        logit: Their logits.
        tensors: Inputs of `model.onnx`: more rows, without logits.
    """
    columns = {
        f"{_INPUT}{name}": values.astype(np.str_) if values.dtype == np.object_ else values
        for name, values in raw.items()
    }
    encoded = {f"{_TENSOR}{name}": values for name, values in (tensors or {}).items()}
    np.savez(path, logit=logit, **columns, **encoded)  # type: ignore[arg-type]  # columns are never called allow_pickle


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Encoded rows, as `model.onnx` takes them.

    Raises:
        BundleError: The file is no such file.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return {name.removeprefix(_TENSOR): arrays[name] for name in arrays if name.startswith(_TENSOR)}
    except (OSError, ValueError) as error:
        raise BundleError(f"`{path}` cannot be read: {error}", "export the model again") from error


def read_samples(
    path: Path, inputs: Sequence[RawInput] | Sequence[TensorInput]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
    """Rows as the graph takes them, raw ones where there is a `pipeline.onnx`, and the logits they must get.

    Raises:
        BundleError: The file is no such file, or lacks an input.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            raw = {
                entry.name: arrays[f"{_INPUT}{entry.name}"].astype(np.object_)
                if entry.datatype == "BYTES"
                else arrays[f"{_INPUT}{entry.name}"]
                for entry in inputs
            }
            return raw, arrays["logit"]
    except (OSError, ValueError, KeyError) as error:
        raise BundleError(f"`{path}` cannot be read: {error}", "export the model again") from error
