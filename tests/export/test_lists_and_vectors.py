"""Lists, histories and vectors: inside the graph, against plain Python, to the bit; and served."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from lightning_mp.bundle import Bundle
from lightning_mp.data import transforms
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import MISSING_INTEGER, Vocabulary
from lightning_mp.export.check import check_bundle
from lightning_mp.export.encoder_graph import encoder_graph
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.fidelity import check_encoder
from lightning_mp.export.raw_lists import decode_lists, encode_lists
from lightning_mp.export.raw_rows import hostile_rows
from lightning_mp.export.taken_inputs import taken_inputs
from lightning_mp.hardware.session import open_session
from lightning_mp.networks.mmoe import MMoE
from lightning_mp.networks.sasrec import SASRec
from lightning_mp.schema import Feature, FeatureSchema
from lightning_mp.serve.app import ScoringApp
from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.scorer import Scorer

WORDS = {
    "user": Vocabulary([f"u{n}" for n in range(30)]),
    "item": Vocabulary(list(range(100, 140))),
    "tags": Vocabulary(["a", "b", "c", "d"]),
    "sizes": Vocabulary([36, 38, 40]),
    "recent": Vocabulary(list(range(100, 140))),
}


def indexed(name: str, kind: str, role: str, width: int = 1) -> Feature:
    words = WORDS[name]
    return Feature(name=name, kind=kind, role=role, source_dtype="string" if words.is_text else "int64", width=width,  # type: ignore[arg-type]
                   stored_dtype="int32", vocabulary_size=words.size, vocabulary_digest=words.digest)  # fmt: skip


def vector(name: str, dtype: str, width: int, kind: str = "none") -> Feature:
    fitted = transforms.fit(kind, np.random.default_rng(0).normal(size=60))  # type: ignore[arg-type]
    return Feature(name=name, kind="vector", role="item", source_dtype="double", stored_dtype=dtype, width=width,
                   transform=fitted, missing="constant", missing_value=0.5)  # fmt: skip


LABELS = tuple(Feature(name=name, kind="numeric", role="label", source_dtype="bool", stored_dtype="float32")
               for name in ("click", "order"))  # fmt: skip
SHOP = FeatureSchema(
    features=(indexed("user", "id", "user"), indexed("item", "id", "item"),
              indexed("tags", "multi_categorical", "item", 3), indexed("sizes", "multi_categorical", "user", 2),
              vector("taste", "float16", 4), *LABELS)
)  # fmt: skip
NEXT = FeatureSchema(features=(indexed("item", "id", "item"), indexed("recent", "sequence", "user", 5)))


def lists(rng: np.random.Generator, feature: Feature, rows: int) -> pa.Array:
    held = np.arange(feature.width) < rng.integers(0, feature.width + 1, rows)[:, None]
    held = held[:, ::-1] if feature.kind == "sequence" else held
    values = rng.integers(1, feature.vocabulary_size, (rows, feature.width)) * held
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel().astype(np.int32)), feature.width)


def make_store(folder: Path, schema: FeatureSchema, rows: int = 700) -> FeatureStore:
    rng, columns = np.random.default_rng(), {}
    for feature in schema.features:
        if feature.role == "label":
            columns[feature.name] = (rng.random(rows) < 0.3).astype(np.float32)
        elif feature.kind == "vector":
            numbers = pa.array(rng.normal(size=rows * feature.width).astype(feature.stored_dtype))
            columns[feature.name] = pa.FixedSizeListArray.from_arrays(numbers, feature.width)
        elif feature.kind in ("multi_categorical", "sequence"):
            columns[feature.name] = lists(rng, feature, rows)
        else:
            columns[feature.name] = rng.integers(0, feature.vocabulary_size, rows).astype(np.int32)
    table, store = pa.table(columns), FeatureStore(folder)
    words = {name: words for name, words in WORDS.items() if name in columns}
    store.write({"train": table[:200], "test": table[200:]}, schema=schema, vocabularies=words)
    return store


def far(network: nn.Module) -> nn.Module:
    """Tables far from their start, so that an input that is swapped or cut shows."""
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, nn.Embedding):
                part.weight[1:].normal_(std=0.5)
    return network.eval()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[MMoE, FeatureStore, Bundle]:
    folder = tmp_path_factory.mktemp("shop")
    store = make_store(folder / "store", SHOP)
    network = far(MMoE(SHOP, tasks=("click", "order"), experts=2))
    return network, store, export_bundle(network, folder / "bundle", store=store)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 11])
def test_lists_of_any_length_and_vectors_are_encoded_to_the_bit(tmp_path, length):
    import onnx

    schema = FeatureSchema(
        features=(*SHOP.features, indexed("recent", "sequence", "user", 5), vector("mood", "float32", 2, "quantile"),
                  vector("wide", "float16", 3, "signed_log"))
    )  # fmt: skip
    model, rng, rows = encoder_graph(schema, WORDS, 20), np.random.default_rng(), 60
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(tmp_path / "encoder.onnx"))
    session = open_session(tmp_path / "encoder.onnx")
    check_encoder(session, schema, WORDS, hostile_rows(schema, WORDS))
    raw = {
        "user": rng.choice(np.array(["u1", "u29", "stranger", ""], dtype=object), rows),
        "item": rng.choice(np.array([100, 139, 7, MISSING_INTEGER]), rows),
        "tags": rng.choice(np.array(["a", "b", "c", "d", "e", ""], dtype=object), (rows, length)),
        "sizes": rng.choice(np.array([36, 38, 40, 41, MISSING_INTEGER]), (rows, length)),
        "recent": rng.choice(np.array([100, 101, 102, 7, MISSING_INTEGER]), (rows, length)),
        "taste": rng.normal(size=(rows, 4)) * 1e5,
        "mood": np.where(rng.random((rows, 2)) < 0.2, np.nan, rng.normal(size=(rows, 2))),
        "wide": rng.standard_t(1, size=(rows, 3)) * 1e6,
    }
    check_encoder(session, schema, WORDS, raw)
    one = {name: values[:1] for name, values in raw.items()}
    for ours, theirs in zip(session.run(None, one), session.run(None, raw), strict=True):
        np.testing.assert_array_equal(ours, theirs[:1])


def test_of_a_list_the_first_entries_count_and_of_a_sequence_the_last_known_ones():
    schema = FeatureSchema(features=(indexed("tags", "multi_categorical", "item", 3), *NEXT.features))
    raw = {
        "tags": np.array([["", "d", "?", "", "c", "b"], ["a", "", "", "", "", ""]], dtype=object),
        "recent": np.array([[100, 7, 101, 102, 103, 104, 105], [MISSING_INTEGER] * 5 + [7, 139]]),
    }
    encoded = encode_lists(schema, WORDS, raw)
    assert encoded["multi"].tolist() == [[[4, 0, 3]], [[1, 0, 0]]]
    assert encoded["history"].tolist() == [[2, 3, 4, 5, 6], [0, 0, 0, 0, 40]]
    again = encode_lists(schema, WORDS, decode_lists(schema, WORDS, encoded))
    assert {name: rows.tolist() for name, rows in again.items()} == {n: r.tolist() for n, r in encoded.items()}


def test_logits_of_several_tasks_are_judged_and_named(shop):
    network, _, bundle = shop
    assert bundle.manifest.tasks == ("click", "order")
    assert [(t.name, t.shape) for t in bundle.manifest.tensors] == [("ids", (2,)), ("dense", (4,)), ("multi", (2, 3))]
    report = json.loads((bundle.path / "parity.json").read_text())
    assert list(report["tasks"]) == ["click", "order"]
    for section, key, worst in (("logit", "max", max), ("ranking", "overlap_mean", min)):
        assert report[section][key] == worst(report["tasks"][task][section][key] for task in ("click", "order"))
    assert report["pipeline"]["silent"] == []
    checked = check_bundle(bundle.path)
    assert checked.ok, [finding for finding in checked.findings if not finding.ok]
    batch = {
        "ids": torch.tensor([[3, 5], [1, 2]]),
        "multi": torch.tensor([[[1, 2, 0], [3, 0, 0]], [[0, 0, 0], [1, 2, 0]]]),
        "dense": torch.randn(2, 4),
    }
    with torch.no_grad():
        expected = network(batch).numpy()
    feeds = {name: tensor.numpy() for name, tensor in batch.items()}
    logit, score = open_session(bundle.model).run(["logit", "score"], feeds)
    np.testing.assert_allclose(logit, expected, atol=1e-5)
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-expected.astype(np.float64))), atol=1e-6)
    outside = {**feeds, "multi": feeds["multi"] + np.array([[4], [0]])}  # `tags` has 5 rows, `sizes` 4
    outside["multi"][0, 0] = [-1, 5, 2**40]
    inside = {
        **outside,
        "multi": np.where((outside["multi"] < 0) | (outside["multi"] >= [[5], [4]]), 0, outside["multi"]),
    }
    session = open_session(bundle.model)
    np.testing.assert_array_equal(session.run(["logit"], outside)[0], session.run(["logit"], inside)[0])


ROWS = [
    {"user": "u3", "item": 104, "tags": ["b", None, "nobody knows", "a", "d"], "sizes": [38], "taste": [1, 2.5, -3, 0]},
    {"user": "u4", "item": 105, "tags": [], "taste": None},
    {"user": "nobody", "item": 105},
]


def test_a_service_takes_lists_and_vectors_and_answers_by_task(shop):
    network, _, bundle = shop
    scorer = Scorer.open(bundle.path)
    assert scorer.indexed == ("user", "item", "tags", "sizes")
    scores = scorer.score(ROWS)
    ids = torch.tensor([[4, 5], [5, 6], [0, 6]])
    multi = torch.tensor([[[2, 0, 1], [2, 0, 0]], [[0] * 3] * 2, [[0] * 3] * 2])
    dense = torch.tensor([[1, 2.5, -3, 0], [0.5] * 4, [0.5] * 4])
    with torch.no_grad():
        expected = network({"ids": ids, "multi": multi, "dense": dense}).numpy()
    np.testing.assert_allclose(scores.logit, expected, atol=1e-5)
    assert scores.unknown.tolist() == [[False, False, True, False], [False] * 4, [True, False, False, False]]
    np.testing.assert_allclose(scorer.score(ROWS[1:2]).logit, expected[1:2], atol=1e-5)
    assert scorer.score([]).logit.shape == (0, 2)


def ask(app: ScoringApp, path: str, body: object) -> tuple[int, dict]:
    import asyncio

    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST" if body is not None else "GET", "path": path, "headers": []}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_requests_with_lists(shop):
    scorer = Scorer.open(shop[2].path)
    app = ScoringApp(scorer, name="shop")
    status, answer = ask(app, "/score", {"rows": ROWS})
    assert status == 200
    expected = scorer.score(ROWS)
    assert [list(row) for row in answer["scores"]] == [["click", "order"]] * 3
    np.testing.assert_allclose([list(row.values()) for row in answer["logits"]], expected.logit)
    assert answer["unknown"] == [["tags"], [], ["user"]]
    assert answer["missing"] == [[], ["tags", "sizes", "taste"], ["tags", "sizes", "taste"]]
    _, model = ask(app, "/v2/models/shop", None)
    assert {entry["name"]: entry["shape"] for entry in model["inputs"]} == {
        "user": [-1], "item": [-1], "tags": [-1, -1], "sizes": [-1, -1], "taste": [-1, 4]}  # fmt: skip
    assert model["outputs"][0]["shape"] == [-1, 2]
    assert model["properties"]["tasks"] == ["click", "order"]
    tensors = [
        {"name": "user", "datatype": "BYTES", "shape": [2], "data": ["u3", "u4"]},
        {"name": "item", "datatype": "INT64", "shape": [2], "data": [104, 105]},
        {"name": "tags", "datatype": "BYTES", "shape": [2, 5], "data": [ROWS[0]["tags"], [None] * 5]},
        {"name": "sizes", "datatype": "INT64", "shape": [2, 1], "data": [38, None]},
        {"name": "taste", "datatype": "FP32", "shape": [2, 4], "data": [1, 2.5, -3, 0, None, None, None, None]},
    ]
    status, answer = ask(app, "/v2/models/shop/infer", {"inputs": tensors})
    assert status == 200, answer
    assert answer["outputs"][0]["shape"] == [2, 2]
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected.logit[:2].ravel())
    status, answer = ask(app, "/v2/models/shop/infer", {"inputs": [{**tensors[4], "shape": [2, 5]}]})
    assert (status, answer["error"]) == (400, "`inputs[0]`: `taste` has shape [2, 5]")
    assert "[rows, 4]" in answer["hint"]


def test_one_long_list_among_many_rows_takes_no_memory_for_each_of_them(shop):
    scorer = Scorer.open(shop[2].path)
    rng = np.random.default_rng()
    rows = [{"user": f"u{rng.integers(30)}", "item": int(rng.integers(100, 140)), "tags": ["a", "c"], "sizes": [36]}
            for _ in range(4000)]  # fmt: skip
    rows[1234] |= {"tags": ["b"] * 2 + ["d"] * 500_000}  # padded for all rows: 16 GB
    rows[3999] |= {"tags": ["x"] * 1000}
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_address_space() + 2 * 2**30, limit[1]))
    try:
        scores = scorer.score(rows)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    for place in (0, 1233, 1234, 1235, 3998, 3999):
        row = {**rows[place], "tags": rows[place]["tags"][:3]}
        alone = scorer.score([row])
        np.testing.assert_allclose(scores.logit[place], alone.logit[0], rtol=1e-5, atol=1e-6)
        assert scores.unknown[place].tolist() == alone.unknown[0].tolist()


def used_address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tags": "a"}, '`rows[0]`: `tags` is "a", not a list'),
        ({"tags": ["a", 5]}, "`rows[0].tags[1]`: `tags` is 5, not a text"),
        ({"sizes": [36.5]}, "`rows[0].sizes[0]`: `sizes` is 36.5, not an integer"),
        ({"taste": [1, 2, 3]}, "`rows[0]`: `taste` is [1, 2, 3], not a list of 4 numbers"),
        ({"taste": [1, 2, 3, "4"]}, '`rows[0].taste[3]`: `taste` is "4", not a finite number'),
        ({"taste": 1.0}, "`rows[0]`: `taste` is 1.0, not a list of 4 numbers"),
    ],
)
def test_a_wrong_list_is_refused_with_its_place(shop, row, words):
    with pytest.raises(RequestError) as caught:
        Scorer.open(shop[2].path).score([row])
    assert words in caught.value.problem


def test_a_history_and_an_item_are_all_that_a_next_item_model_takes(tmp_path):
    network = far(SASRec(NEXT, max_length=5, embedding_dim=8, blocks=1))
    bundle = export_bundle(network, tmp_path / "bundle", store=make_store(tmp_path / "store", NEXT))
    assert [(t.name, t.shape) for t in bundle.manifest.tensors] == [("history", (5,)), ("target", ())]
    assert [(i.name, i.shape, i.longest) for i in bundle.manifest.inputs] == [("item", (), None), ("recent", (-1,), 5)]
    seen = [101, 7, 103, 104, 102, 139, 100]
    scores = Scorer.open(bundle.path).score([{"item": 105, "recent": seen}, {"item": 105}])
    history = torch.tensor([[4, 5, 3, 40, 1], [0] * 5])
    with torch.no_grad():
        expected = network({"history": history, "target": torch.tensor([6, 6])}).numpy()
    np.testing.assert_allclose(scores.logit, expected, atol=1e-5)
    assert scores.unknown.tolist() == [[False, True], [False, False]]


class EitherOr(nn.Module):
    """Takes the item from `ids`, and from `target` where there are none."""

    def forward(self, batch):
        item = batch["ids"][:, 0] if "ids" in batch else batch["target"]
        return item * 1.0 + batch.get("weight", torch.zeros(1)) * 0.0


def test_of_two_inputs_that_stand_in_for_each_other_one_is_taken():
    item = torch.tensor([3, 4])
    assert taken_inputs(EitherOr(), {"ids": item[:, None], "weight": torch.ones(2), "target": item}) == ("target",)
    assert taken_inputs(EitherOr(), {"ids": item[:, None], "weight": torch.ones(2)}) == ("ids",)


def test_a_history_that_no_store_holds_comes_from_batches_and_is_named_history(tmp_path):
    schema = FeatureSchema(features=NEXT.features[:1])
    network = far(SASRec(schema, max_length=6, embedding_dim=8, blocks=1))
    batches = [{"history": torch.randint(41, (300, 6)), "target": torch.randint(41, (300,))} for _ in range(2)]
    store = make_store(tmp_path / "store", schema)
    bundle = export_bundle(network, tmp_path / "bundle", store=store, rows=batches)
    assert bundle.manifest.schema == store.schema
    assert [(i.name, i.shape, i.longest) for i in bundle.manifest.inputs] == [("item", (), None), ("history", (-1,), 6)]
    assert check_bundle(bundle.path).ok
    scorer = Scorer.open(bundle.path)
    answered = scorer.score([{"item": 105, "history": [101, 102]}]).logit
    with torch.no_grad():
        expected = network({"history": torch.tensor([[0, 0, 0, 0, 2, 3]]), "target": torch.tensor([6])}).numpy()
    np.testing.assert_allclose(answered, expected, atol=1e-5)
    assert json.loads((bundle.path / "parity.json").read_text())["rows"] == 600
