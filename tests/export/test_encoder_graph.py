"""The graph that encodes, against plain NumPy, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data import transforms
from lightning_mp.data.vocabulary import MISSING_INTEGER, Vocabulary
from lightning_mp.errors import ConfigurationError, ParityError
from lightning_mp.export.encoder_graph import encoder_graph
from lightning_mp.export.fidelity import check_encoder
from lightning_mp.export.raw_features import raw_inputs
from lightning_mp.export.raw_rows import decode_rows, encode_rows, hostile_rows
from lightning_mp.hardware.session import open_session
from lightning_mp.schema import Feature, FeatureSchema

KINDS = ("none", "zscore", "signed_log", "log1p", "log1p_zscore", "log1p_flag", "linear", "quantile", "power_of_two",
         "robust_clip")  # fmt: skip


def numeric(name: str, kind: str, dtype: str, missing_value: float | None = 0.25) -> Feature:
    sample = np.array([0.0, 0.3, 2.0, 1000.0]) if "log1p" in kind else np.array([-5.0, 0.3, 2.0, 1000.0])
    missing = "refuse" if missing_value is None else "constant"
    return Feature(name=name, kind="numeric", role="item", source_dtype="double", stored_dtype=dtype, missing=missing,
                   transform=transforms.fit(kind, sample), missing_value=missing_value,
                   width=transforms.width(kind))  # fmt: skip


def every_transform() -> FeatureSchema:
    names = [(f"{kind} {dtype}", kind, dtype) for kind in KINDS for dtype in ("float16", "float32")]
    return FeatureSchema(features=tuple(numeric(*name) for name in names))


def session_of(schema: FeatureSchema, vocabularies: dict[str, Vocabulary], folder: Path):
    import onnx

    model = encoder_graph(schema, vocabularies, 20)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / "encoder.onnx"))
    return open_session(folder / "encoder.onnx")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    schema = every_transform()
    return schema, session_of(schema, {}, tmp_path_factory.mktemp("encoder"))


@given(values=st.lists(st.floats(width=64), min_size=1, max_size=40))
def test_any_double_is_encoded_to_the_bit_by_every_transform(numbers, values):
    schema, session = numbers
    raw = {feature.name: np.array(values) for feature in schema.features}
    check_encoder(session, schema, {}, raw)


def test_numbers_over_all_magnitudes_are_encoded_to_the_bit(numbers):
    schema, session = numbers
    rng = np.random.default_rng()
    values = rng.choice([-1.0, 1.0], 20_000) * np.exp(rng.uniform(-60, 60, 20_000))
    check_encoder(session, schema, {}, {feature.name: values for feature in schema.features})


def test_the_last_step_is_the_rounding_of_the_store(numbers):
    schema, session = numbers
    values = np.array([1.0 + 2.0**-11, 1.0 + 2.0**-10 * 1.5, 65519.0, 2.0**-25, 2.0**-24, 0.1])
    raw = {feature.name: values for feature in schema.features}
    answered = session.run(None, raw)[0]
    column = 0
    for feature in schema.features:
        computed = transforms.apply(feature.transform, values).astype(np.float32).reshape(len(values), feature.width)
        stored = np.clip(computed, -65504, 65504) if feature.stored_dtype == "float16" else computed
        with np.errstate(under="ignore"):
            expected = stored.astype(feature.stored_dtype)
        np.testing.assert_array_equal(answered[:, column : column + feature.width], expected)
        column += feature.width


def test_what_is_beyond_the_stored_type_becomes_its_largest_number(numbers):
    schema, session = numbers
    raw = {feature.name: np.array([np.inf, -np.inf, 1e300]) for feature in schema.features}
    answered = session.run(None, raw)[0]
    assert np.isfinite(answered).all()
    names = [feature.name for feature in schema.features]
    assert answered[:, names.index("none float16")].tolist() == [65504.0, -65504.0, 65504.0]
    assert answered[0, names.index("none float32")] == np.finfo(np.float32).max


def test_what_is_outside_the_valid_range_becomes_what_stands_in(tmp_path):
    plain = numeric("age", "zscore", "float16")
    limits = {"valid_from": 0.0, "valid_to": 120.0, "stand_in": 40.0}
    transform = replace(plain.transform, constants={**plain.transform.constants, **limits})
    schema = FeatureSchema(features=(replace(plain, transform=transform),))
    raw = {"age": np.array([-1.0, 0.0, 33.0, 120.0, 121.0, np.inf, -np.inf, np.nan, 40.0])}
    session = session_of(schema, {}, tmp_path)
    check_encoder(session, schema, {}, raw)
    answered = session.run(None, raw)[0][:, 0]
    assert (answered == answered[8]).tolist() == [True, False, False, False, True, True, True, False, True]


def test_missing_takes_the_rule_s_number_and_refused_stays_nan(tmp_path):
    schema = FeatureSchema(
        features=(numeric("filled", "zscore", "float16"), numeric("demanded", "zscore", "float16", None))
    )
    session = session_of(schema, {}, tmp_path)
    answered = session.run(None, {name: np.array([np.nan]) for name in ("filled", "demanded")})[0][0]
    stands_in = transforms.apply(schema.features[0].transform, [0.25]).astype(np.float32).astype(np.float16)
    assert answered[0] == stands_in[0]
    assert np.isnan(answered[1])
    assert [entry.required for entry in raw_inputs(schema)] == [False, True]


def indexed(name: str, words: Vocabulary, source: str) -> Feature:
    return Feature(name=name, kind="id", role="user", source_dtype=source, stored_dtype="int32",
                   vocabulary_size=words.size, vocabulary_digest=words.digest)  # fmt: skip


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), unique=True),
    integers=st.lists(st.integers(MISSING_INTEGER + 1, 2**63 - 1), unique=True),
    asked=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5),
)
def test_every_key_finds_its_row_and_nothing_else_does(tmp_path_factory, texts, integers, asked):
    words = {"text": Vocabulary(texts), "number": Vocabulary(integers)}
    schema = FeatureSchema(
        features=(indexed("text", words["text"], "string"), indexed("number", words["number"], "int64"))
    )
    session = session_of(schema, words, tmp_path_factory.mktemp("encoder"))
    text = np.array([*texts, *asked, *(f"{t} " for t in texts), ""], dtype=object)
    number = np.resize(np.array([*integers, MISSING_INTEGER, 0, -1]), len(text))
    check_encoder(session, schema, words, {"text": text, "number": number})


def test_missing_and_unknown_keys_are_row_0_even_of_an_empty_vocabulary(tmp_path):
    words = {"text": Vocabulary([]), "number": Vocabulary(np.array([7]))}
    schema = FeatureSchema(
        features=(indexed("text", words["text"], "string"), indexed("number", words["number"], "int64"))
    )
    session = session_of(schema, words, tmp_path)
    raw = {"text": np.array(["", "x", "7"], dtype=object), "number": np.array([MISSING_INTEGER, 8, 7])}
    assert session.run(None, raw)[0].tolist() == [[0, 0], [0, 0], [0, 1]]
    assert session.run(["unknown"], raw)[0].tolist() == [[False, False], [True, True], [True, False]]


def test_inputs_are_called_as_the_features_whatever_their_names_hold(tmp_path):
    names = ["ids", "dense", "a/b", "preis in €", "batch", "val_2", "sizes"]
    schema = FeatureSchema(features=tuple(numeric(name, "zscore", "float16") for name in names))
    session = session_of(schema, {}, tmp_path)
    assert [(i.name, i.shape) for i in session.get_inputs()] == [(name, ["batch"]) for name in names]


@pytest.mark.parametrize("name", ["logit", "score", "unknown", "encoded/x", "model/x"])
def test_a_feature_with_the_name_of_an_inner_value_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"feature `{name}` has the name of a value inside"):
        raw_inputs(FeatureSchema(features=(numeric(name, "none", "float32"),)))


def test_what_a_batch_cannot_hold_is_refused():
    clicks, orders = (
        Feature(name=name, kind="sequence", role="user", source_dtype="int64", stored_dtype="int32", width=4,
                vocabulary_size=9)
        for name in ("clicks", "orders")
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="holds one `history`, and the schema has the sequences `clicks`, `or"):
        raw_inputs(FeatureSchema(features=(clicks, orders)))
    vector = Feature(name="taste", kind="vector", role="user", source_dtype="double", stored_dtype="float16", width=4,
                     transform=transforms.fit("log1p_flag", np.array([0.0, 3.0])))  # fmt: skip
    with pytest.raises(ConfigurationError, match="feature `taste` of kind `vector` is 4 columns wide, and its transf"):
        raw_inputs(FeatureSchema(features=(vector,)))


def test_decoded_rows_encode_to_the_stored_ones(prepared):
    table = prepared.store.load("train")
    raw = decode_rows(prepared.schema, prepared.vocabularies, table.ids, table.dense)
    ids, dense = encode_rows(prepared.schema, prepared.vocabularies, raw)
    np.testing.assert_array_equal(ids, table.ids)
    np.testing.assert_allclose(dense, table.dense.astype(np.float32), rtol=2e-3, atol=1e-3)


def test_clipped_numbers_decode_without_a_warning_and_come_back():
    schema = every_transform()
    largest = np.full((2, schema.dense_width), 65504.0) * [[1.0], [-1.0]]
    raw = decode_rows(schema, {}, np.empty((2, 0), dtype=np.int64), largest)
    _, dense = encode_rows(schema, {}, raw)
    wide = [feature for feature in schema.features for _ in range(feature.width)]
    bounded = ("quantile", "robust_clip", "log1p_flag")  # these bring it back to the largest number they were fitted on
    kept = [i for i, f in enumerate(wide) if f.stored_dtype == "float16" and f.transform.kind not in bounded]
    np.testing.assert_allclose(dense[0, kept], 65504.0, rtol=2e-3)


def test_encoding_the_log_gives_the_store(prepared):
    ids, dense = encode_rows(prepared.schema, prepared.vocabularies, prepared.raw)
    for split in ("train", "test"):
        table = prepared.store.load(split)
        np.testing.assert_array_equal(ids[table.row], table.ids)
        np.testing.assert_array_equal(dense[table.row], table.dense.astype(np.float32))


def test_a_wrong_constant_in_the_graph_is_named(prepared, tmp_path):
    import onnx

    model = encoder_graph(prepared.schema, prepared.vocabularies, 20)
    for tensor in model.graph.initializer:
        if tensor.name == "encoded/age/std":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(99.0), tensor.name))
    onnx.save(model, str(tmp_path / "encoder.onnx"))
    with pytest.raises(ParityError, match=r"feature `age`: .* becomes .* in `pipeline\.onnx`, .* in training"):
        check_encoder(open_session(tmp_path / "encoder.onnx"), prepared.schema, prepared.vocabularies,
                      hostile_rows(prepared.schema, prepared.vocabularies))  # fmt: skip


def test_keys_beyond_what_a_file_holds_are_refused_by_the_feature_that_has_most(prepared, monkeypatch):
    from lightning_mp.errors import ConfigurationError
    from lightning_mp.export import encoder_graph as home

    monkeypatch.setattr(home, "MOST_KEY_BYTES", 1000)
    with pytest.raises(
        ConfigurationError, match=r"an ONNX file holds 1,000; those of `(user|item)` alone take"
    ) as caught:
        home.encoder_graph(prepared.schema, prepared.vocabularies, 20)
    assert "integer keys" in caught.value.hint
