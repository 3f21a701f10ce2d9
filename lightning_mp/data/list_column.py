"""A column of lists written as text, such as `Comedy|Drama`: its words, and their rows in the order they stand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.row_pieces import column_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import DataError
from lightning_mp.schema import Feature

Int64 = npt.NDArray[np.int64]


def list_column(
    spec: FeatureSpec, values: pa.ChunkedArray, training: npt.NDArray[np.bool_]
) -> tuple[Feature, npt.NDArray[np.int32], Vocabulary, str]:
    """Fit the words on the training part and encode all lists.

    Empty entries are passed over; of a list the first ones count, as many as the longest training list has or `length`
    says. A word that the vocabulary does not know keeps its place, as 0.

    Args:
        spec: Of kind `multi_categorical`.
        values: (N,) text; null for no list.
        training: (N,) rows of the training part.

    Returns:
        The feature, its (N, L) vocabulary rows with 0 behind them, the vocabulary, and one line on how it came out.

    Raises:
        DataError: The column is no text, or no training row has an entry.
    """
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        problem = f"feature `{spec.name}` holds {values.type}; a list is text such as `a{spec.separator}b`"
        raise DataError(problem, "write the lists as text, or name another column")
    counts: Counter[str] = Counter()
    longest = total = 0
    for place, piece in column_pieces(values):
        lengths, codes, words = _entries(piece, spec.separator or "")
        counted = np.bincount(codes[np.repeat(training[place], lengths)], minlength=len(words))
        counts.update(dict(zip(words, counted.tolist(), strict=True)))
        longest = max(longest, int(lengths[training[place]].max(initial=0)))
        total += len(codes)
    if not longest:
        raise DataError(f"feature `{spec.name}` has no entry in any training row", "name another column or separator")
    seen = +counts  # those of later rows alone count 0
    vocabulary = Vocabulary.from_counts(seen.keys(), seen.values(), min_count=spec.min_count, max_size=spec.max_size)
    width, lost = spec.length or longest, 0
    made = scratch_array((len(values), width), np.int32)
    for place, piece in column_pieces(values):
        lengths, codes, words = _entries(piece, spec.separator or "")
        row = np.repeat(np.arange(place.start, place.stop), lengths)
        at = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        kept = at < width
        made[place] = 0
        made[row[kept], at[kept]] = vocabulary.encode(words)[codes[kept]]
        lost += int(np.count_nonzero(~kept))
    feature = Feature(
        name=spec.name,
        kind="multi_categorical",
        role=spec.role,
        source_dtype="string",
        stored_dtype="int32",
        width=width,
        vocabulary_size=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
    )
    note = (
        f"{vocabulary.size:,} entries, {total / max(len(values), 1):.1f} a row, {width} kept at most, {lost:,} cut off"
    )
    return feature, made, vocabulary, note


def _entries(piece: pa.Array, separator: str) -> tuple[Int64, npt.NDArray[np.int32], list[str]]:
    """How many entries each list has, and all of them one behind the other: a code each, and the text of each code."""
    split = pc.split_pattern(piece.fill_null(""), separator)
    words = pc.utf8_trim_whitespace(split.flatten())
    row = np.repeat(np.arange(len(piece)), np.diff(split.offsets.to_numpy()))
    given = pc.not_equal(words, "").to_numpy(zero_copy_only=False)
    encoded = words.filter(pa.array(given)).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return np.bincount(row[given], minlength=len(piece)), codes, encoded.dictionary.to_pylist()
