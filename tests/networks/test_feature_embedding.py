from __future__ import annotations

import pytest
import torch

from lightning_mp.errors import ConfigurationError, DataError
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
@pytest.mark.parametrize("sparse", [False, True])
def test_each_feature_looks_into_its_own_table(dtype, sparse):
    embedding = FeatureEmbedding(SCHEMA, embedding_dim=3, sparse=sparse)
    rows = ids()
    looked_up = embedding(rows.to(dtype))
    assert looked_up.shape == (30, embedding.width) == (30, 9)
    tables = embedding.table.weight.split([10, 1, 25]) if sparse else [table.weight for table in embedding.tables]
    for row in range(30):
        expected = [tables[f][rows[row, f]] for f in range(3)]
        assert torch.equal(looked_up[row], torch.cat(expected))
    looked_up.sum().backward()
    assert all(parameter.grad.is_sparse == sparse for parameter in embedding.parameters())


@pytest.mark.parametrize("fused", [False, True])
def test_the_unknown_row_starts_at_zero_and_learns(fused):
    embedding = FeatureEmbedding(SCHEMA, fused=fused)
    unknown = torch.zeros(1, 3, dtype=torch.int64)
    assert not embedding(unknown).any()
    embedding(unknown).sum().backward()
    gradients = torch.cat([parameter.grad for parameter in embedding.parameters()])
    assert gradients.any(dim=1).nonzero().squeeze(1).tolist() == [0, 10, 11]


def test_a_list_is_the_mean_of_what_is_known_in_it(mixed):
    embedding = FeatureEmbedding(mixed.schema, embedding_dim=4)
    inputs = mixed.batch()
    inputs["multi"][3] = 0
    means = embedding(inputs["ids"], inputs["multi"])[:, -4:]
    for row in range(101):
        known = [int(i) for i in inputs["multi"][row, 0] if i != 0]
        expected = embedding.tables[4].weight[known].mean(0) if known else torch.zeros(4)
        torch.testing.assert_close(means[row], expected)


def test_a_long_list_does_not_overflow_in_float16():
    tags = Feature(
        name="tags", kind="multi_categorical", role="item", source_dtype="string", stored_dtype="int32",
        vocabulary_size=3, width=100,
    )  # fmt: skip
    embedding = FeatureEmbedding(FeatureSchema(features=(tags,)), embedding_dim=2).half()
    with torch.no_grad():
        embedding.tables[0].weight.fill_(3e4)
    assert torch.equal(embedding(None, torch.ones(2, 1, 100, dtype=torch.int64)), torch.full((2, 2), 3e4).half())


def test_roles_take_their_own_columns(mixed):
    inputs = mixed.batch()
    everything = FeatureEmbedding(mixed.schema)
    item = FeatureEmbedding(mixed.schema, roles=("item",))
    assert [feature.name for feature in (*item.features, *item.lists)] == ["item", "brand", "tags"]
    assert item.joined_width == 3 * 16 + 4
    for number, other in enumerate((1, 3, 4)):
        item.tables[number].load_state_dict(everything.tables[other].state_dict())
    whole = everything.join(inputs)
    columns = [*range(16, 32), *range(48, 64), *range(64, 80), *range(81, 85)]
    torch.testing.assert_close(item.join(inputs), whole[:, columns], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("fused", [False, True])
def test_large_vocabularies_share_rows_and_unknown_keeps_its_own(dtype, fused):
    size, rows = 5000, 101
    user = Feature(
        name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32", vocabulary_size=size
    )
    schema = FeatureSchema(features=(user, *SCHEMA.features[1:]))
    embedding = FeatureEmbedding(schema, embedding_dim=2, max_rows=rows, fused=fused)
    assert sum(parameter.numel() for parameter in embedding.parameters()) == (rows + 1 + 25) * 2
    every = torch.stack([torch.arange(size), torch.zeros(size), torch.arange(size) % 25], dim=1).to(dtype)
    looked_up = embedding(every)
    whole = embedding.table.weight[:rows] if fused else embedding.tables[0].weight
    assert not looked_up[0, :2].any()
    hour = embedding.table.weight[rows + 1 :] if fused else embedding.tables[2].weight
    assert torch.equal(looked_up[:25, 4:], hour)
    taken = [next(i for i in range(rows) if torch.equal(whole[i], row)) for row in looked_up[:, :2]]
    assert 0 not in taken[1:]
    counts = torch.tensor(taken[1:]).bincount(minlength=rows)[1:]
    assert counts.min() > 0.5 * size / rows
    assert counts.max() < 2 * size / rows


def test_a_checkpoint_of_either_form_loads_into_the_other(mixed):
    many = FeatureEmbedding(mixed.schema, embedding_dim=3)
    one = FeatureEmbedding(mixed.schema, embedding_dim=3, sparse=True)
    again = FeatureEmbedding(mixed.schema, embedding_dim=3)
    inputs = mixed.batch()
    one.load_state_dict(many.state_dict())
    again.load_state_dict(one.state_dict())
    assert torch.equal(one.join(inputs), many.join(inputs))
    assert torch.equal(again.join(inputs), many.join(inputs))
    other = FeatureEmbedding(SCHEMA, embedding_dim=3, sparse=True)
    with pytest.raises(RuntimeError, match=r"Missing key|size mismatch"):
        again.load_state_dict(other.state_dict())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("feature", "value"), [("user", 10), ("item", 1), ("hour", -1), ("hour", 25)])
def test_an_id_outside_its_table_is_named(feature, value, dtype, fused):
    rows = ids()
    rows[17, list(SIZES).index(feature)] = value
    size = SIZES[feature]
    with pytest.raises(DataError) as caught:
        FeatureEmbedding(SCHEMA, fused=fused)(rows.to(dtype))
    assert caught.value.problem == (
        f"feature `{feature}` has id {value} at row 17 of the batch, its table has {size} rows (0 to {size - 1})"
    )


def test_mistakes_are_named(mixed):
    embedding = FeatureEmbedding(SCHEMA)
    for call, kind, problem in (
        (lambda: FeatureEmbedding(SCHEMA, max_rows=1), ConfigurationError, "`max_rows` must be at least 2, got 1"),
        (lambda: FeatureEmbedding(SCHEMA, embedding_dim=0), ConfigurationError, "`embedding_dim` must be at least 1"),
        (lambda: embedding(ids()[:, :2]), ConfigurationError, "`ids` has 2 columns, the schema has 3 indexed features"),
        (lambda: embedding(ids().half()), DataError, "`ids` is float16, ids must be int32 or int64"),
        (lambda: embedding.join({}), ConfigurationError, "the batch has no `ids`; it has nothing"),
    ):
        with pytest.raises(kind, match=problem):
            call()
