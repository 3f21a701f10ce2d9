"""Features of labelled rows: fitted on the training part, encoded for all parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.columns import Columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.imputation import ModeFill, empty_groups, fill_modes, fit_modes
from lightning_mp.data.list_column import list_column
from lightning_mp.data.needed_columns import mapped_column
from lightning_mp.data.numeric_column import fit_numeric
from lightning_mp.data.row_pieces import column_array, column_pieces, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.data.zone_clock import ZoneClock
from lightning_mp.errors import DataError
from lightning_mp.schema import Feature

Mask = npt.NDArray[np.bool_]
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureColumn:
    """One feature, ready for the store.

    Attributes:
        feature: Its entry in the schema.
        values: (N,) int32 vocabulary rows, or float64 numbers after the transform.
        vocabulary: Of an indexed feature.
        note: One line on how it came out.
        fill: What stands in for a missing category, where that is a mode.
        filled: How many were filled from where.
    """

    feature: Feature
    values: npt.NDArray[np.int32] | npt.NDArray[np.float64]
    vocabulary: Vocabulary | None
    note: str
    fill: ModeFill | None = None
    filled: dict[str, int] = field(default_factory=dict)


def feature_columns(
    specs: Sequence[FeatureSpec], table: pa.Table, training: Mask, columns: Columns
) -> list[FeatureColumn]:
    """Fit and encode features.

    Args:
        specs: As declared.
        table: (N) labelled rows, columns as in `EventLog.table`.
        training: (N,) rows of the training part; nothing else is fitted on.
        columns: Where the file kept what.

    Returns:
        One entry a spec, in their order, behind it the indicator of its missing values where one is asked for.

    Raises:
        DataError: A column holds nothing, or something its rule refuses.
    """
    made = []
    for spec in specs:
        name = spec.table_column(columns)
        if spec.kind == "sequence":
            continue  # they are made of the whole log: `sequence_columns`
        if name is None:
            made.append(_calendar(spec, table["time"], columns.time_zone or "UTC"))
        elif spec.kind == "multi_categorical":
            listed, rows, words, note = list_column(spec, table[name], training)
            made.append(FeatureColumn(feature=listed, values=rows, vocabulary=words, note=note))
        elif spec.kind == "numeric":
            feature, values, note = fit_numeric(spec, table[name], table["row"], training)
            made.append(FeatureColumn(feature=feature, values=values, vocabulary=None, note=note))
        else:
            made.append(_categories(spec, table, training, columns))
        if spec.indicator and name is not None:
            made.append(_indicator(spec, table[name], training))
    return made


def _categories(spec: FeatureSpec, table: pa.Table, training: Mask, columns: Columns) -> FeatureColumn:
    values = table[spec.table_column(columns) or ""]
    if spec.missing_rule != "mode":
        return _indexed(spec, values, training)
    groups = {name: table[mapped_column(name, columns)] for name in spec.missing_by}
    fill = fit_modes(values, groups, training)
    filled, counts = fill_modes(fill, values, groups)
    made = _indexed(spec, filled, training)
    told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    note = f"{made.note}; {values.null_count / max(len(values), 1):.1%} missing, filled from: {told or 'nowhere'}"
    for name, group in list(groups.items())[:1]:
        empty, total = empty_groups(values, group)
        note += f"; {empty:,} of {total:,} `{name}` ({empty / max(total, 1):.1%}) have none at all"
    return replace(made, note=note, fill=fill, filled=counts)


def _indicator(spec: FeatureSpec, values: pa.ChunkedArray, training: Mask) -> FeatureColumn:
    missing, found = scratch_array(len(values), np.float64), 0
    for place, piece in column_pieces(values):
        missing[place] = piece.is_null().to_numpy(zero_copy_only=False)
        found += int(np.count_nonzero(missing[place][training[place]]))
    feature = Feature(
        name=f"{spec.name}_missing",
        kind="numeric",
        role=spec.role,
        source_dtype="double",
        stored_dtype="float16",
        missing="constant",
        missing_value=0.0,
    )
    note = f"1 in {found / np.count_nonzero(training):.1%} of the training rows"
    return FeatureColumn(feature=feature, values=missing, vocabulary=None, note=note)


def _indexed(spec: FeatureSpec, values: pa.ChunkedArray, training: Mask) -> FeatureColumn:
    if spec.missing_rule == "refuse" and values.null_count:
        problem = f"feature `{spec.name}` is missing in {values.null_count:,} of {len(values):,} rows"
        raise DataError(problem, "fill the column, or use `missing: unknown`")
    codes, distinct = column_codes(values)
    words = distinct.to_pylist()
    counts = np.zeros(len(words) + 1, dtype=np.int64)
    for piece in row_pieces(len(codes), 1 << 19):
        # The last place, which a code of -1 points to, is the missing value's.
        counts += np.bincount(codes[piece][training[piece]] % (len(words) + 1), minlength=len(words) + 1)
    counts = counts[:-1]
    seen = np.flatnonzero(counts)
    vocabulary = Vocabulary.from_counts(
        [words[code] for code in seen.tolist()],
        counts[seen].tolist(),
        min_count=spec.min_count,
        max_size=spec.max_size,
    )
    row_of = _row_of(distinct, vocabulary)
    rows, known, unknown = codes, 0, 0
    for piece in row_pieces(len(codes)):
        rows[piece] = row_of[codes[piece]]
        known += int(np.count_nonzero(rows[piece][training[piece]]))
        unknown += int(np.count_nonzero(rows[piece][~training[piece]] == 0))
    trained = max(int(np.count_nonzero(training)), 1)
    later = unknown / (len(rows) - trained) if trained < len(rows) else 0.0
    note = (
        f"{vocabulary.size:,} entries, {known / trained:.1%} of training rows known, {later:.1%} of later rows unknown"
    )
    source = "int64" if pa.types.is_integer(values.type) else "string"
    return FeatureColumn(feature=_feature(spec, source, vocabulary), values=rows, vocabulary=vocabulary, note=note)


def _row_of(distinct: pa.Array, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """The vocabulary's row of each code, and behind them that of a missing value, to which a code of -1 points."""
    entries = pa.array(vocabulary.entries, type=distinct.type) if len(vocabulary.entries) else distinct.slice(0, 0)
    rows = pc.index_in(distinct, value_set=entries).fill_null(-1).to_numpy(zero_copy_only=False) + 1
    return np.append(rows, 0).astype(np.int32)


def _calendar(spec: FeatureSpec, time: pa.ChunkedArray, zone: str) -> FeatureColumn:
    moments = column_array(time, np.int64)
    days = np.unique(np.concatenate([np.unique(moments[piece] // _DAY_US) for piece in row_pieces(len(moments))]))
    clock, rows = ZoneClock(zone, days * _DAY_US), scratch_array(len(moments), np.int32)
    for piece in row_pieces(len(moments)):
        local = clock.local(moments[piece])
        # 1970-01-01 was a Thursday, day 3 of a week that starts on Monday.
        rows[piece] = (local // _HOUR_US % 24 if spec.of == "hour" else (local // _DAY_US + 3) % 7) + 1
    # All values that there are, seen or not: the clock is known beforehand.
    vocabulary = Vocabulary(list(range(24 if spec.of == "hour" else 7)))
    note = f"{vocabulary.size} entries, the {spec.of} in {zone}"
    return FeatureColumn(feature=_feature(spec, "int64", vocabulary), values=rows, vocabulary=vocabulary, note=note)


def _feature(spec: FeatureSpec, source: str, vocabulary: Vocabulary) -> Feature:
    return Feature(
        name=spec.name,
        kind=spec.kind,
        role=spec.role,
        source_dtype=source,
        stored_dtype="int32",
        vocabulary_size=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
        missing=spec.missing_rule,
    )
