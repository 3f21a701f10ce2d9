from __future__ import annotations

import pytest
import torch

from lightning_mp.errors import DataError
from lightning_mp.networks.feature_embedding import FeatureEmbedding
from lightning_mp.schema import Feature, FeatureSchema

SIZES = {"user": 10, "item": 1, "hour": 25}
SCHEMA = FeatureSchema(
    features=tuple(
        Feature(
            name=name,
            kind="categorical",
            role="context",
            source_dtype="string",
            stored_dtype="int32",
            vocabulary_size=size,
        )
        for name, size in SIZES.items()
    )
)


def ids(rows=30):
    return torch.stack([torch.randint(0, size, (rows,)) for size in SIZES.values()], dim=1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_each_feature_looks_into_its_own_table(dtype):
    embedding = FeatureEmbedding(SCHEMA, embedding_dim=3)
    rows = ids()
    looked_up = embedding(rows.to(dtype))
    assert looked_up.shape == (30, embedding.width) == (30, 9)
    for row in range(30):
        expected = [embedding.tables[f].weight[rows[row, f]] for f in range(3)]
        assert torch.equal(looked_up[row], torch.cat(expected))


def test_the_unknown_row_starts_at_zero_and_learns():
    embedding = FeatureEmbedding(SCHEMA)
    unknown = torch.zeros(1, 3, dtype=torch.int64)
    assert not embedding(unknown).any()
    embedding(unknown).sum().backward()
    assert all(table.weight.grad[0].all() and not table.weight.grad[1:].any() for table in embedding.tables)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("feature", "value"), [("user", 10), ("item", 1), ("hour", -1)])
def test_an_id_outside_its_table_is_named(feature, value, dtype):
    rows = ids()
    rows[17, list(SIZES).index(feature)] = value
    size = SIZES[feature]
    with pytest.raises(DataError) as caught:
        FeatureEmbedding(SCHEMA)(rows.to(dtype))
    assert caught.value.problem == (
        f"feature `{feature}` has id {value} at row 17 of the batch, its table has {size} rows (0 to {size - 1})"
    )
