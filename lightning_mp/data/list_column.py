"""A column of lists written as text, such as `Comedy|Drama`: its words, and their rows in the order they stand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import DataError
from lightning_mp.schema import Feature


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
    split = pc.split_pattern(values.fill_null("").combine_chunks(), spec.separator)
    words = pc.utf8_trim_whitespace(split.flatten())
    row = np.repeat(np.arange(len(values)), np.diff(split.offsets.to_numpy()))
    given = pc.not_equal(words, "").to_numpy(zero_copy_only=False)
    row, encoded = row[given], words.filter(pa.array(given)).dictionary_encode()
    codes, known = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
    counts = np.bincount(codes[training[row]], minlength=len(known))
    seen = np.flatnonzero(counts)
    vocabulary = Vocabulary.from_counts(
        [known[code] for code in seen.tolist()], counts[seen].tolist(), min_count=spec.min_count, max_size=spec.max_size
    )
    entries = np.bincount(row, minlength=len(values))
    if not entries[training].any():
        raise DataError(f"feature `{spec.name}` has no entry in any training row", "name another column or separator")
    width = spec.length or int(entries[training].max())
    place = np.arange(len(row)) - (np.cumsum(entries) - entries)[row]
    kept = place < width
    made = np.zeros((len(values), width), dtype=np.int32)
    made[row[kept], place[kept]] = vocabulary.encode(known)[codes[kept]]
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
    lost = int((~kept).sum())
    note = f"{vocabulary.size:,} entries, {entries.mean():.1f} a row, {width} kept at most, {lost:,} cut off"
    return feature, made, vocabulary, note
