"""Whether an exported graph is the module that was exported: batches, ids, encoder, and inputs one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT, Vocabulary
from lightning_mp.errors import ParityError
from lightning_mp.export.encode_raw import encode_raw
from lightning_mp.export.encoded_rows import EncodedRows, Logits, session_logits
from lightning_mp.export.missing_fills import NO_FILLS, MissingFills
from lightning_mp.export.parity import SATURATED
from lightning_mp.export.raw_features import HISTORY, UNKNOWN, item_key
from lightning_mp.export.raw_lists import lost_entries
from lightning_mp.schema import Feature, FeatureSchema

Answer = Callable[[Mapping[str, NDArray[Any]]], Logits]

TOLERANCE: Final = 1e-4
ERRORS: Final = 4.0
"""How many times float32's own error two right programs may differ by."""
STRICT_TOLERANCE: Final = 2e-2
"""Of float16 in torch and in ONNX's reference implementation, whose sums differ in their order."""
_STOP: Final = "report this: the exporter and torch disagree about this network"


class FidelityError(ParityError):
    """A graph is not the module that was exported.

    Args:
        problem: What differs, and by how much.
        code: Of the finding: `MP301`, `MP302`, `MP303` or `MP306`.
        hint: What to do.
    """

    def __init__(self, problem: str, code: str, hint: str = _STOP) -> None:
        super().__init__(problem, hint)
        self.code = code

    def __reduce__(self) -> tuple[type[FidelityError], tuple[str, str, str]]:  # type: ignore[override]  # one more
        return type(self), (self.problem, self.code, self.hint)


def check_core(
    expected: Logits, session: Any, rows: EncodedRows, sizes: Mapping[str, Sequence[Any]], tolerance: float = TOLERANCE
) -> dict[str, float]:
    """Compare `model.onnx` with what it must answer, in batches of 1, 7 and all rows, twice, and on odd ids.

    Args:
        expected: Logits of the module it was made of, with its weights as they were exported.
        session: Of `model.onnx`.
        rows: Real rows.
        sizes: Vocabulary size of each column of the inputs that hold ids.
        tolerance: Of the logit.

    Returns:
        Largest logit difference by way of asking.

    Raises:
        ParityError: A difference is beyond the tolerance, two runs differ, or an id outside of its table is not row 0.
    """
    answered = session_logits(session, rows)
    found = {
        "all": _away(expected, answered),
        "batches_of_7": _away(expected[:70], session_logits(session, rows[:70], batch=7)),
        "batches_of_1": _away(expected[:16], session_logits(session, rows[:16], batch=1)),
        "second_run": _away(answered, session_logits(session, rows)),
        "unknown_ids": _away(*_unknown_ids(session, rows[:16], sizes)),
    }
    for name, largest in found.items():
        if not largest <= (0.0 if name == "second_run" else tolerance):
            problem = f"`model.onnx` and the module differ by {largest:.3g} in the logit ({name.replace('_', ' ')})"
            raise FidelityError(problem, "MP301")
    return found


def check_strict(expected: Logits, strict: Logits) -> None:
    """Compare a strict float16 run with torch's, which rounds at the same places.

    Raises:
        ParityError: They differ by more than `STRICT_TOLERANCE`.
    """
    if not _away(expected, strict) <= STRICT_TOLERANCE:
        problem = f"`model.onnx` in float16 and the module differ by {_away(expected, strict):.3g} in the logit"
        raise FidelityError(problem, "MP306")


def float32_error(module: nn.Module, rows: EncodedRows, logits: Logits) -> float:
    """Largest error that float32 itself makes in the logits, found with the module in float64.

    Where large numbers cancel it can exceed any fixed tolerance, and no two float32 programs agree to better.

    Returns:
        Relative to the logit where the score is saturated; 0 where the module does not run in float64.
    """
    try:
        wide = copy.deepcopy(module).double()
        inputs = {name: x.double() if x.is_floating_point() else x for name, x in rows.tensors().items()}
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            exact = wide(inputs).float().numpy()
    except Exception:  # whatever a `forward` with constants of float32 raises
        return 0.0
    away = differences(exact, logits)
    return float(away.max(initial=0.0, where=np.isfinite(away)))


def differences(ours: Logits, theirs: Logits) -> NDArray[np.float64]:
    """Differences row by row, relative to the logit where the score is saturated."""
    wide = np.abs(ours.astype(np.float64))
    return np.asarray(np.abs(ours.astype(np.float64) - theirs) / np.maximum(1.0, wide / SATURATED))


def check_encoder(
    session: Any,
    schema: FeatureSchema,
    vocabularies: Mapping[str, Vocabulary],
    raw: Mapping[str, NDArray[Any]],
    fills: MissingFills = NO_FILLS,
) -> None:
    """Compare the encoder's graph with the plain NumPy encoding, to the bit.

    Raises:
        ParityError: A value differs; its feature, raw value and both results are named.
    """
    names = [output.name for output in session.get_outputs()]
    graph = dict(zip((name.rpartition("/")[2] for name in names), session.run(names, dict(raw)), strict=True))
    plain = encode_raw(schema, vocabularies, raw, fills).feeds
    several, sequences = schema.of_kind("multi_categorical"), schema.of_kind("sequence")
    wide = [feature for feature in schema.dense for _ in range(feature.width)]
    for name, features in (("ids", schema.ids), ("dense", wide), ("multi", several)):
        for column, feature in enumerate(features):
            _require_same(feature, plain[name][:, column], graph[name][:, column], raw)
    for name, single in ((HISTORY, next(iter(sequences), None)), ("target", item_key(schema))):
        if single is not None:
            _require_same(single, plain[name], graph[name], raw)
    lost = [
        np.array([value not in (MISSING_TEXT, MISSING_INTEGER) for value in raw[feature.name]], dtype=np.bool_)
        & (plain["ids"][:, column] == 0)
        for column, feature in enumerate(schema.ids)
    ]
    lost += list(lost_entries(schema, vocabularies, raw).T)
    for column, feature in enumerate((*schema.ids, *several, *sequences[:1])):
        if not np.array_equal(graph[UNKNOWN][:, column], lost[column]):
            raise FidelityError(f"feature `{feature.name}`: `pipeline.onnx` takes known values for unknown", "MP303")


def _require_same(feature: Feature, ours: NDArray[Any], theirs: NDArray[Any], raw: Mapping[str, NDArray[Any]]) -> None:
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    wrong = np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))
    if wrong.size:
        row = wrong[0]
        raise FidelityError(
            f"feature `{feature.name}`: {raw[feature.name][row]!r} becomes {theirs[row]!r} in `pipeline.onnx`, "
            f"{ours[row]!r} in training",
            "MP303",
        )


def check_inputs(
    ours: Answer, theirs: Answer, inputs: Mapping[str, NDArray[Any]], graph: str, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Change one input of a graph at a time and demand the module's response to the same change.

    Two inputs that were swapped keep names, types and shapes; only this tells.

    Args:
        ours: Logits that the exported module gives for inputs.
        theirs: Logits that the graph gives for them.
        inputs: Rows to change, (N, ...) an input.
        graph: Name of the file.
        tolerance: Of the logit.

    Returns:
        `largest` difference in response, and `silent`, the inputs whose change had no effect on the module.

    Raises:
        ParityError: An input acts otherwise; the one it may be swapped with is named.
    """
    expected: dict[str, NDArray[np.float32]] = {}
    answered: dict[str, NDArray[np.float32]] = {}
    for name, values in inputs.items():
        changed = {**inputs, name: np.roll(values, 1, axis=0)}
        expected[name], answered[name] = ours(changed), theirs(changed)
    unchanged = ours(inputs)
    differences = {name: _away(expected[name], answered[name]) for name in inputs}
    for name, largest in differences.items():
        if not largest <= tolerance:
            others = (n for n in inputs if n != name and _away(expected[n], answered[name]) <= tolerance)
            other = next(others, None)
            guess = f" (swapped with `{other}`?)" if other else ""
            raise FidelityError(f"input `{name}` of `{graph}` does not act like feature `{name}`{guess}", "MP302")
    silent = [name for name in inputs if np.array_equal(expected[name], unchanged, equal_nan=True)]
    return {"largest": max(differences.values(), default=0.0), "silent": silent}


def _unknown_ids(session: Any, rows: EncodedRows, sizes: Mapping[str, Sequence[Any]]) -> tuple[Any, Any]:
    """Logits of ids outside of their tables, and of row 0 in their place."""
    feeds = rows.feeds
    outside, zeros = dict(feeds), dict(feeds)
    for name in sizes.keys() & feeds.keys():
        ids, limits = feeds[name].copy(), np.array(sizes[name], dtype=np.int64)
        for row, fill in enumerate((np.int64(-1), limits, np.int64(2) ** 62, np.int64(-(2**62)))):
            ids[row::4] = fill
        outside[name], zeros[name] = ids, np.zeros_like(ids)
    return session_logits(session, EncodedRows.of(zeros)), session_logits(session, EncodedRows.of(outside))


def _away(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Largest difference, relative to the logit where the score is saturated; infinite where one alone is finite."""
    with np.errstate(invalid="ignore"):
        away = differences(ours, theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return float(np.where(same, 0.0, np.where(np.isfinite(away), away, np.inf)).max(initial=0.0))
