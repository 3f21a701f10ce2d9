"""Raw values to all that a network may take, in plain NumPy."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.export.missing_fills import NO_FILLS, MissingFills
from lightning_mp.export.raw_features import item_key
from lightning_mp.export.raw_lists import encode_lists
from lightning_mp.export.raw_rows import Columns, encode_rows
from lightning_mp.schema import FeatureSchema


def encode_raw(
    schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], raw: Columns, fills: MissingFills = NO_FILLS
) -> EncodedRows:
    """Encode raw values, lists and the item's key included: what the exported encoder must repeat to the bit.

    Args:
        schema: The features.
        vocabularies: Of every id, category and list, by name.
        raw: One array a feature, as `decode_rows` gives them.
        fills: What stands in for missing values beyond the schema.
    """
    ids, dense = encode_rows(schema, vocabularies, raw, fills)
    others, key = dict(encode_lists(schema, vocabularies, raw)), item_key(schema)
    if key is not None:
        others["target"] = ids[:, schema.ids.index(key)]
    return EncodedRows(ids, dense, others)
