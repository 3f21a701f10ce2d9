"""A few raw rows with the answers they must get, kept in the bundle."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.bundle import RawInput
from lightning_mp.errors import BundleError

_INPUT = "input/"


def write_samples(path: Path, raw: Mapping[str, NDArray[Any]], logit: NDArray[np.float32]) -> None:
    """Write raw rows and their logits; text is stored as text, never pickled."""
    columns = {
        f"{_INPUT}{name}": values.astype(np.str_) if values.dtype == np.object_ else values
        for name, values in raw.items()
    }
    np.savez(path, logit=logit, **columns)  # type: ignore[arg-type]  # columns are never called allow_pickle


def read_samples(path: Path, inputs: tuple[RawInput, ...]) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
    """Raw rows as `pipeline.onnx` takes them, and the logits they must get.

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
