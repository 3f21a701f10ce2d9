"""Whether an exported graph is the module that was exported: batches, ids, encoder, and inputs one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ParityError
from lightning_mp.export.encoded_rows import EncodedRows, module_logits, pipeline_logits, session_logits
from lightning_mp.export.parity import SATURATED
from lightning_mp.export.raw_rows import encode_rows
from lightning_mp.schema import FeatureSchema

TOLERANCE: Final = 1e-4
_STOP: Final = "report this: the exporter and torch disagree about this network"


def check_core(module: nn.Module, session: Any, rows: EncodedRows, schema: FeatureSchema) -> dict[str, float]:
    """Compare `model.onnx` with the module it was made of, in batches of 1, 7 and all rows, twice, and on odd ids.

    Args:
        module: What was exported, with its tables as they were exported.
        session: Of `model.onnx`.
        rows: Real rows.
        schema: The features.

    Returns:
        Largest logit difference by way of asking.

    Raises:
        ParityError: A difference is beyond 1e-4, two runs differ, or an id outside of its table is not row 0.
    """
    expected, answered = module_logits(module, rows), session_logits(session, rows)
    found = {
        "all": _away(expected, answered),
        "batches_of_7": _away(expected[:70], session_logits(session, rows[:70], batch=7)),
        "batches_of_1": _away(expected[:16], session_logits(session, rows[:16], batch=1)),
        "second_run": _away(answered, session_logits(session, rows)),
        "unknown_ids": _away(*_unknown_ids(session, rows[:16], schema)),
    }
    for name, largest in found.items():
        if not largest <= (0.0 if name == "second_run" else TOLERANCE):
            problem = f"`model.onnx` and the module differ by {largest:.3g} in the logit ({name.replace('_', ' ')})"
            raise ParityError(problem, _STOP)
    return found


def check_encoder(
    session: Any, schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], raw: Mapping[str, NDArray[Any]]
) -> None:
    """Compare the encoder's graph with the plain NumPy encoding, to the bit.

    Raises:
        ParityError: A value differs; its feature, raw value and both results are named.
    """
    names = [output.name for output in session.get_outputs()]
    graph = dict(zip((name.rpartition("/")[2] for name in names), session.run(names, dict(raw)), strict=True))
    plain = EncodedRows(*encode_rows(schema, vocabularies, raw)).feeds
    for name, features in (("ids", schema.ids), ("dense", schema.dense)):
        for column, feature in enumerate(features):
            ours, theirs = plain[name][:, column], graph[name][:, column]
            wrong = np.flatnonzero(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))
            if wrong.size:
                row = wrong[0]
                raise ParityError(
                    f"feature `{feature.name}`: {raw[feature.name][row]!r} becomes {theirs[row]!r} in `pipeline.onnx`, "
                    f"{ours[row]!r} in training",
                    _STOP,
                )


def check_inputs(
    module: nn.Module,
    session: Any,
    schema: FeatureSchema,
    vocabularies: Mapping[str, Vocabulary],
    raw: Mapping[str, NDArray[Any]],
) -> dict[str, Any]:
    """Change one input of `pipeline.onnx` at a time and demand the module's response to the same change.

    Two inputs that were swapped keep names, types and shapes; only this tells.

    Args:
        module: What was exported.
        session: Of `pipeline.onnx`.
        schema: The features.
        vocabularies: Of every id and categorical feature, by name.
        raw: Rows to change, (N,) a feature.

    Returns:
        `largest` difference in response, and `silent`, the inputs whose change had no effect on either.

    Raises:
        ParityError: An input acts otherwise; the one it may be swapped with is named.
    """
    ours: dict[str, NDArray[np.float32]] = {}
    theirs: dict[str, NDArray[np.float32]] = {}
    for name, values in raw.items():
        changed = {**raw, name: np.roll(values, 1)}
        ours[name] = module_logits(module, EncodedRows(*encode_rows(schema, vocabularies, changed)))
        theirs[name] = pipeline_logits(session, changed)
    unchanged = module_logits(module, EncodedRows(*encode_rows(schema, vocabularies, raw)))
    differences = {name: _away(ours[name], theirs[name]) for name in raw}
    for name, largest in differences.items():
        if not largest <= TOLERANCE:
            other = next((n for n in raw if n != name and _away(ours[n], theirs[name]) <= TOLERANCE), None)
            guess = f" (swapped with `{other}`?)" if other else ""
            raise ParityError(f"input `{name}` of `pipeline.onnx` does not act like feature `{name}`{guess}", _STOP)
    silent = [name for name in raw if np.array_equal(ours[name], unchanged, equal_nan=True)]
    return {"largest": max(differences.values(), default=0.0), "silent": silent}


def _unknown_ids(session: Any, rows: EncodedRows, schema: FeatureSchema) -> tuple[Any, Any]:
    """Logits of ids outside of their tables, and of row 0 in their place."""
    sizes = np.array([feature.vocabulary_size or 0 for feature in schema.ids], dtype=np.int64)
    outside = rows.ids.copy()
    for row, fill in enumerate((np.int64(-1), sizes, np.int64(2) ** 62, np.int64(-(2**62)))):
        outside[row::4] = fill
    zeros = EncodedRows(np.zeros_like(rows.ids), rows.dense)
    return session_logits(session, zeros), session_logits(session, EncodedRows(outside, rows.dense))


def _away(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Largest difference, relative to the logit where the score is saturated; infinite where one alone is finite."""
    with np.errstate(invalid="ignore"):
        away = np.abs(ours.astype(np.float64) - theirs) / np.maximum(1.0, np.abs(ours.astype(np.float64)) / SATURATED)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return float(np.where(same, 0.0, np.where(np.isfinite(away), away, np.inf)).max(initial=0.0))
