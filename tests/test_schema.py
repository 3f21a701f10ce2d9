"""The precision contract: round trip, equality, differences, growth."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_mp.errors import SchemaError
from lightning_mp.schema import (
    DENSE,
    INDEXED,
    Feature,
    FeatureSchema,
    Kind,
    Missing,
    Role,
    Transform,
    TransformKind,
    columns,
)

NAMES = st.text(min_size=1, max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TRANSFORMS = st.builds(
    Transform, kind=st.sampled_from(get_args(TransformKind)), constants=st.dictionaries(NAMES, NUMBERS, max_size=3)
)
FEATURES = st.builds(
    Feature,
    name=NAMES,
    kind=st.sampled_from(get_args(Kind)),
    role=st.sampled_from(get_args(Role)),
    source_dtype=st.sampled_from(["string", "int64", "double"]),
    stored_dtype=st.sampled_from(["int32", "float16", "float32"]),
    compute_dtype=st.sampled_from(["float16", "float32"]),
    width=st.integers(1, 64),
    vocabulary_size=st.integers(1, 10**7),
    vocabulary_digest=st.none() | st.just("0" * 64),
    transform=TRANSFORMS,
    missing=st.sampled_from(get_args(Missing)),
    missing_value=st.none() | NUMBERS,
    window_us=st.none() | st.integers(1, 10**14),
    delay_us=st.none() | st.integers(0, 10**12),
)
SCHEMAS = st.builds(
    lambda features: FeatureSchema(features=tuple(features)),
    st.lists(FEATURES, max_size=6, unique_by=lambda feature: feature.name),
)


def feature(name: str = "user", **changed) -> Feature:
    given_fields = {
        "kind": "id",
        "role": "user",
        "source_dtype": "string",
        "stored_dtype": "int32",
        "vocabulary_size": 11,
    }
    return Feature(name=name, **{**given_fields, **changed})


def number(name: str, **changed) -> Feature:
    plain = {"kind": "numeric", "role": "item", "source_dtype": "double", "stored_dtype": "float16"}
    return Feature(name=name, **{**plain, **changed})


@given(SCHEMAS)
def test_json_gives_the_schema_back(schema):
    again = FeatureSchema.from_json(schema.to_json())
    assert again == schema
    assert (again.digest, again.to_json()) == (schema.digest, schema.to_json())
    assert schema.difference(again) is None


@given(SCHEMAS, SCHEMAS)
def test_equal_digest_equal_schema_and_no_difference_are_one_thing(one, other):
    assert (one == other) == (one.digest == other.digest) == (one.difference(other) is None)


@given(SCHEMAS, st.data())
def test_the_first_changed_field_is_named_with_both_values(schema, data):
    assume(schema.features)
    index = data.draw(st.integers(0, len(schema.features) - 1))
    old = schema.features[index]
    name = data.draw(st.sampled_from([f.name for f in fields(Feature) if f.name != "name"]))
    value = getattr(data.draw(FEATURES), name)
    assume(value != getattr(old, name))
    changed = list(schema.features)
    changed[index] = replace(old, **{name: value})
    other = FeatureSchema(features=tuple(changed))
    assert schema.difference(other) == (old.name, name, getattr(old, name), value)
    assert other.difference(schema) == (old.name, name, value, getattr(old, name))


@given(SCHEMAS, st.data())
def test_a_feature_that_is_gone_or_moved_is_named(schema, data):
    assume(len(schema.features) >= 2)
    index = data.draw(st.integers(0, len(schema.features) - 1))
    without = FeatureSchema(features=schema.features[:index] + schema.features[index + 1 :])
    gone = schema.features[index].name
    assert schema.difference(without) == (gone, "presence", True, False)
    assert without.difference(schema) == (gone, "presence", False, True)
    turned = FeatureSchema(features=schema.features[::-1])
    assert schema.difference(turned) == (schema.features[0].name, "position", 0, len(schema.features) - 1)


@given(SCHEMAS, st.data())
def test_grown_vocabularies_extend_and_nothing_else_does(schema, data):
    grown = FeatureSchema(
        features=tuple(
            replace(f, vocabulary_size=f.vocabulary_size + data.draw(st.integers(0, 9)), vocabulary_digest="1" * 64)
            for f in schema.features
        )
    )
    assert schema.extends(schema)
    assert grown.extends(schema)
    if any(new.vocabulary_size > old.vocabulary_size for new, old in zip(grown.features, schema.features, strict=True)):
        assert not schema.extends(grown)
    for index, old in enumerate(schema.features):
        wider = replace(old, width=old.width + 1)
        other = FeatureSchema(features=(*schema.features[:index], wider, *schema.features[index + 1 :]))
        assert not other.extends(schema)
    assert not FeatureSchema(features=(*schema.features, feature("a feature more than twelve"))).extends(schema)


def test_columns_stand_in_schema_order_and_wide_features_take_several():
    schema = FeatureSchema(
        features=(
            number("price"),
            feature("user"),
            number("clicked", role="label"),
            feature("hour", kind="categorical", role="context", vocabulary_size=25),
            number("picture", kind="vector", width=3),
            number("weight", role="weight"),
        )
    )
    assert [f.name for f in schema.ids] == ["user", "hour"]
    assert [f.name for f in schema.dense] == ["price", "picture"]
    assert [f.name for f in schema.labels] == ["clicked"]
    assert schema.dense_width == 4
    assert columns(schema.dense) == ["price", "picture[0]", "picture[1]", "picture[2]"]
    assert columns(schema.ids) == ["user", "hour"]
    assert set(INDEXED).isdisjoint(DENSE)


def test_a_schema_cannot_be_changed():
    schema = FeatureSchema(features=(feature(),))
    with pytest.raises(FrozenInstanceError):
        schema.version = 2
    with pytest.raises(FrozenInstanceError):
        schema.features[0].width = 2


def test_features_have_no_default():
    with pytest.raises(TypeError, match="features"):
        FeatureSchema()


def test_a_name_given_twice_is_refused():
    with pytest.raises(SchemaError, match="feature `user` stands twice"):
        FeatureSchema(features=(feature(), feature()))


@pytest.mark.parametrize("kind", [*INDEXED, "multi_categorical", "sequence"])
def test_an_indexed_feature_without_vocabulary_is_refused(kind):
    with pytest.raises(SchemaError, match=f"feature `brand` is of kind `{kind}` and has no vocabulary size"):
        FeatureSchema(features=(feature("brand", kind=kind, vocabulary_size=None),))


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(SchemaError, match=r"no feature `usr`; there are `user`, `item`"):
        FeatureSchema(features=(feature(), feature("item", role="item"))).feature("usr")


def test_require_equal_names_feature_field_both_values_and_both_sides():
    trained = FeatureSchema(features=(feature(),))
    served = FeatureSchema(features=(feature(vocabulary_size=12),))
    trained.require_equal(trained, here="here", there="there")
    with pytest.raises(SchemaError) as caught:
        trained.require_equal(served, here="checkpoint `last.ckpt`", there="store `./store`")
    assert caught.value.problem == (
        "feature `user` differs in `vocabulary_size`: checkpoint `last.ckpt` has 11, store `./store` has 12"
    )


def altered(**changed) -> str:
    record = json.loads(FeatureSchema(features=(feature(),)).to_json())
    record["features"][0].update(changed)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "the schema is not JSON"),
        ("[]", "holds no list of `features`"),
        ('{"version": 1}', "holds no list of `features`"),
        ('{"version": 99, "features": []}', "is of version 99, this package reads version 1"),
        ('{"features": []}', "is of version None"),
        (altered(colour="red"), "feature `user` has an unknown field `colour`"),
        (altered(kind="ids"), "feature `user` has kind 'ids'; known are id, categorical"),
        (altered(role="buyer"), "feature `user` has role 'buyer'; known are user, item"),
    ],
)
def test_what_is_not_a_schema_is_refused_by_name(text, problem):
    with pytest.raises(SchemaError) as caught:
        FeatureSchema.from_json(text)
    assert problem in caught.value.problem


def test_nan_cannot_enter_the_contract():
    schema = FeatureSchema(features=(number("price", missing_value=float("nan")),))
    with pytest.raises(ValueError, match="JSON compliant"):
        schema.to_json()
