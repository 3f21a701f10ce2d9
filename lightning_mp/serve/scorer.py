"""Scorer: an exported bundle that answers rows of raw values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.bundle import Bundle
from lightning_mp.errors import BundleError
from lightning_mp.hardware.session import open_session
from lightning_mp.manifest import Datatype, Manifest, RawInput
from lightning_mp.serve.columns import MISSING, missing_value
from lightning_mp.serve.latest_features import LatestFeatures
from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.rows import columns_of_rows

_NUMPY: Final[dict[Datatype, Any]] = {"BYTES": np.object_, "INT64": np.int64, "FP64": np.float64}
_ONNX: Final[dict[Datatype, str]] = {"BYTES": "tensor(string)", "INT64": "tensor(int64)", "FP64": "tensor(double)"}
_WARM_UP = (1, 64)
_UNKNOWN: Final = "unknown"
_MOST_CELLS: Final = 2**20
"""Of one run's longest list, padded: one long list among many rows would else take memory for each of them."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the model says of some rows.

    Attributes:
        logit: (B,) or (B, T) float32, finite.
        score: As `logit`, in [0, 1]: the chance of a click, or a preference.
        unknown: (B, F) bool, one column an id or category in schema order, then one a list: it, or an entry of it, was
            given, and the model does not know it. `None` of a bundle whose graph does not tell.
    """

    logit: NDArray[np.float32]
    score: NDArray[np.float32]
    unknown: NDArray[np.bool_] | None = None

    def __getitem__(self, rows: slice) -> Scores:
        return Scores(self.logit[rows], self.score[rows], None if self.unknown is None else self.unknown[rows])


class Scorer:
    """Scores rows of raw named values with the `pipeline.onnx` of a bundle.

    Vocabularies, missing-value rules and transforms are in the graph, so a row is what the event log held. It runs
    on the CPU in the calling thread: a row takes tens of microseconds, less than handing it to another one.

    Args:
        bundle: An opened bundle.

    Raises:
        BundleError: ONNX Runtime cannot load or run the graph, or it does not take what the manifest says.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._session = _session(bundle)
        self._outputs = list(bundle.manifest.outputs)
        if _UNKNOWN in (output.name for output in self._session.get_outputs()):
            self._outputs.append(_UNKNOWN)
        self.latest = LatestFeatures(bundle)
        for rows in _WARM_UP:
            try:
                self.run({spec.name: [missing_value(spec)] * rows for spec in self.inputs}, rows)
            except RequestError:
                pass  # rows without any value may have no finite score; a request would be told so
            except Exception as error:
                raise BundleError(f"`{bundle.pipeline}` does not run: {_line(error)}", "export it again") from error

    @classmethod
    def open(cls, dirpath: str | Path) -> Scorer:
        """Open a bundle's folder, every file of it compared with its digest.

        Raises:
            BundleError: The folder is no bundle, is incomplete or altered, or its graph does not run.
        """
        return cls(Bundle.open(dirpath))

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of itself."""
        return self.bundle.manifest

    @property
    def inputs(self) -> tuple[RawInput, ...]:
        """What a row may hold."""
        return self.bundle.manifest.inputs

    @property
    def indexed(self) -> tuple[str, ...]:
        """Names of the ids and categories, and then of the lists, in the order of `Scores.unknown`."""
        keyed = [spec for spec in self.inputs if spec.datatype != "FP64"]
        return tuple(spec.name for wanted in (False, True) for spec in keyed if spec.is_list is wanted)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the columns of logits and scores; none where there is one of each a row."""
        return self.bundle.manifest.tasks

    @property
    def batch_dependent(self) -> bool:
        """Whether a row's score depends on the other rows of its batch: a layer takes its range from all of them."""
        return self.manifest.precision.get("used") == "int8-dynamic"

    @property
    def tells_unknown(self) -> bool:
        """Whether the graph tells which values it does not know; those of early bundles do not."""
        return _UNKNOWN in self._outputs

    def score(self, rows: Sequence[Mapping[str, object]]) -> Scores:
        """Score rows of raw values.

        Args:
            rows: One mapping a row, `{name: value}`; null is a missing value, and so is a name left out, unless the
                bundle's tables know it of the row's user or item.

        Returns:
            Finite logits and scores, in the order of the rows.

        Raises:
            RequestError: A name is unknown, a value breaks the rules of its type, or a score is not finite.
        """
        return self.run(columns_of_rows(self.inputs, self.completed(rows)), len(rows))

    def completed(self, rows: Any) -> Any:
        """Rows with what they leave out filled in from the bundle's tables; what is no list of rows stays as it is."""
        return self.latest.complete(rows) if len(self.latest) and isinstance(rows, list | tuple) else rows

    def run(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Scores:
        """Score columns that `checked_column` made.

        Args:
            columns: For every input one value a row.
            rows: How many.

        Raises:
            RequestError: A score is not finite; the first such row is named.
        """
        if rows == 0:
            empty = np.empty((0, len(self.tasks)) if self.tasks else 0, dtype=np.float32)
            return Scores(
                empty, empty, np.empty((0, len(self.indexed)), dtype=np.bool_) if self.tells_unknown else None
            )
        scores = self._run({spec.name: columns[spec.name] for spec in self.inputs}, rows)
        require_finite(scores)
        return scores

    def _run(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Scores:
        longest = max((len(row) for spec in self.inputs if spec.is_list for row in columns[spec.name]), default=0)
        if rows > 1 and rows * longest > _MOST_CELLS:
            half = rows // 2
            first = {name: values[:half] for name, values in columns.items()}
            second = {name: values[half:] for name, values in columns.items()}
            return _joined(self._run(first, half), self._run(second, rows - half))
        feeds = {
            spec.name: _padded(spec, columns[spec.name])
            if spec.is_list
            else np.array(columns[spec.name], dtype=_NUMPY[spec.datatype])
            for spec in self.inputs
        }
        answer = dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))
        return Scores(answer["logit"], answer["score"], answer.get(_UNKNOWN))


def _joined(first: Scores, second: Scores) -> Scores:
    unknown = None
    if first.unknown is not None and second.unknown is not None:
        unknown = np.concatenate([first.unknown, second.unknown])
    logit, score = np.concatenate([first.logit, second.logit]), np.concatenate([first.score, second.score])
    return Scores(logit, score, unknown)


def _padded(spec: RawInput, rows: Sequence[Sequence[Any]]) -> NDArray[Any]:
    """Lists of several lengths as a matrix, with missing entries behind, which the graph passes over."""
    filled = np.full((len(rows), max(1, *map(len, rows))), MISSING[spec.datatype], dtype=_NUMPY[spec.datatype])
    for row, values in enumerate(rows):
        filled[row, : len(values)] = values
    return filled


def require_finite(scores: Scores) -> None:
    """Refuse rows for which the model gives NaN or infinity: JSON has neither, and neither is a score.

    Raises:
        RequestError: With status 422; the first such row is named.
    """
    finite = np.isfinite(scores.logit) & np.isfinite(scores.score)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        raise RequestError(
            f"row {row}: its score is not a finite number",
            "look for a value far outside of what the model was trained on",
            status=422,
        )


def _session(bundle: Bundle) -> Any:
    path = bundle.pipeline
    if not bundle.has_pipeline:
        raise BundleError(
            f"`{bundle.path}` has no `{path.name}`: it was exported without a feature store",
            f"call `{bundle.model.name}` with ONNX Runtime, or export with `export_bundle` and a feature store",
        )
    session = open_session(path, "cpu")  # text and vocabularies have no kernels elsewhere
    told = {spec.name: _ONNX[spec.datatype] for spec in bundle.manifest.inputs}
    found = {entry.name: entry.type for entry in session.get_inputs()}
    if told != found:
        name = next(name for name in (*told, *found) if told.get(name) != found.get(name))
        raise BundleError(
            f"`{path}`: the manifest says {told.get(name)} for input `{name}`, the graph takes {found.get(name)}",
            "export it again",
        )
    outputs = [entry.name for entry in session.get_outputs()]
    for name in ("logit", "score", *bundle.manifest.outputs):
        if name not in outputs or name not in bundle.manifest.outputs:
            raise BundleError(f"`{path}` has no output `{name}`: it has {', '.join(outputs)}", "export it again")
    return session


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
