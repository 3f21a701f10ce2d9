from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lightning_mp.bundle import Bundle
from lightning_mp.errors import ArtifactError, ConfigurationError, ParityError, SchemaError
from lightning_mp.export import core_graph
from lightning_mp.export.encoded_rows import EncodedRows, module_logits
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.graph_precision import initializer_types
from lightning_mp.export.raw_rows import encode_rows, hostile_rows
from lightning_mp.export.sample_inputs import read_samples
from lightning_mp.hardware.session import open_session
from lightning_mp.manifest import METADATA_KEY, Manifest
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import FeatureSchema
from lightning_mp.serve.scorer import Scorer


def parity(bundle: Bundle) -> dict:
    return json.loads((bundle.path / "parity.json").read_text())


def test_raw_values_of_the_log_get_the_trained_module_s_logit(prepared, network, bundle):
    encoded = EncodedRows(*encode_rows(prepared.schema, prepared.vocabularies, prepared.raw))
    expected = module_logits(network, encoded)
    session = open_session(bundle.pipeline)
    logit, score = session.run(["logit", "score"], prepared.raw)
    np.testing.assert_allclose(logit, expected, atol=1e-5)
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-expected.astype(np.float64))), atol=1e-6)
    one = session.run(["logit"], {name: values[:1] for name, values in prepared.raw.items()})[0]
    np.testing.assert_allclose(one, expected[:1], atol=1e-5)


def test_named_rows_of_a_service_get_the_trained_module_s_logit(prepared, network, bundle):
    encoded = EncodedRows(*encode_rows(prepared.schema, prepared.vocabularies, prepared.raw))[:20]
    columns = {name: values[:20].tolist() for name, values in prepared.raw.items()}
    rows = [{name: values[n] for name, values in columns.items() if values[n] == values[n]} for n in range(20)]
    scores = Scorer.open(bundle.path).score(rows)
    np.testing.assert_allclose(scores.logit, module_logits(network, encoded), atol=1e-5)


def test_hostile_raw_values_get_the_trained_module_s_logit_too(prepared, network, bundle):
    raw = hostile_rows(prepared.schema, prepared.vocabularies)
    expected = module_logits(network, EncodedRows(*encode_rows(prepared.schema, prepared.vocabularies, raw)))
    answered = open_session(bundle.pipeline).run(["logit"], raw)[0]
    sane = np.isfinite(expected)
    assert (np.isfinite(answered) == sane).all()
    np.testing.assert_allclose(answered[sane], expected[sane], rtol=1e-5, atol=1e-5)


def test_the_folder_holds_what_it_says_and_the_graphs_carry_the_manifest(prepared, bundle):
    import onnx

    assert sorted(bundle.manifest.files) == ["model.onnx", "parity.json", "pipeline.onnx", "sample_inputs.npz"]
    assert bundle.manifest.schema == prepared.schema
    assert [(i.name, i.datatype, i.required) for i in bundle.manifest.inputs] == [
        ("user", "BYTES", False), ("item", "INT64", False), ("brand", "BYTES", False), ("price", "FP64", False),
        ("dwell", "FP64", False), ("age", "FP64", False), ("rank", "FP64", False),
    ]  # fmt: skip
    assert bundle.manifest.model["network"] == "lightning_mp.networks.dcn_v2.DCNv2"
    assert {"torch", "onnx", "onnxruntime", "lightning_mp"} <= set(bundle.manifest.versions)
    for file in (bundle.model, bundle.pipeline):
        entries = {e.key: e.value for e in onnx.load(str(file), load_external_data=False).metadata_props}
        assert Manifest.from_json(entries[METADATA_KEY]).schema == prepared.schema
        assert list(entries) == [METADATA_KEY]
    report = parity(bundle)
    assert report["passed"]
    assert report["split"] == "test"
    assert report["rows"] == 360
    assert report["pipeline"]["silent"] == []


def test_samples_are_raw_rows_with_their_logits(bundle):
    raw, logit = read_samples(bundle.path / "sample_inputs.npz", bundle.manifest.inputs)
    assert len(logit) == 12
    np.testing.assert_array_equal(open_session(bundle.pipeline).run(["logit"], raw)[0], logit)


def test_float16_tables_halve_the_weights_and_compute_in_float32(prepared, tmp_path):
    network = prepared.network(embedding_dim=64)
    half = export_bundle(network, tmp_path / "half", store=prepared.store, precision="fp16-storage")
    full = export_bundle(network, tmp_path / "full", store=prepared.store)
    precision = half.manifest.precision
    tables = {f"embedding.tables.{n}" for n in range(3)}
    assert precision["tables"] == dict.fromkeys(tables, "float16")
    types = initializer_types(half.model)
    assert types == precision["initializers"]
    assert {name for name, kind in types.items() if kind == "FLOAT16"} == {f"{name}.weight" for name in tables}
    saved = full.model.stat().st_size - half.model.stat().st_size
    assert saved == pytest.approx(2 * 64 * sum(v.size for v in prepared.vocabularies.values()), rel=0.03)
    # The reference is the module with rounded tables: all arithmetic after the look-up is float32.
    for table in network.embedding.tables:
        table.weight.data = table.weight.data.half().float()
    encoded = EncodedRows(*encode_rows(prepared.schema, prepared.vocabularies, prepared.raw))
    answered = open_session(half.pipeline).run(["logit"], prepared.raw)[0]
    np.testing.assert_allclose(answered, module_logits(network, encoded), atol=1e-5)


def test_auto_takes_float16_where_the_gates_allow_and_says_why_not(prepared, tmp_path):
    network = prepared.network()
    taken = export_bundle(network, tmp_path / "a", store=prepared.store, precision="auto").manifest.precision
    assert (taken["policy"], taken["used"]) == ("auto", "fp16-storage")
    assert "passes the gates" in taken["reason"]
    for table in network.embedding.tables:
        table.weight.data[-1, 0] = 70_000.0
    refused = export_bundle(network, tmp_path / "b", store=prepared.store, precision="auto").manifest.precision
    assert refused["used"] == "fp32"
    assert "float16 ends at 65504" in refused["reason"]


def test_float16_that_fails_its_gates_is_refused_with_a_report_and_no_bundle(prepared, tmp_path):
    network = prepared.network()
    for table in network.embedding.tables:  # float16 steps by 0.5 there: all rows become the same
        table.weight.data.clamp_(-0.2, 0.2).add_(1000.0)
    with pytest.raises(ParityError, match=r"fp16-storage: logit p99 is \S+ > 0.005 on 360 test rows") as caught:
        export_bundle(network, tmp_path / "bundle", store=prepared.store, precision="fp16-storage")
    report = json.loads((tmp_path / "bundle.parity.json").read_text())
    assert report["passed"] is False
    assert report["code"] == report["findings"][0]["code"] == "MP309"
    assert str(tmp_path / "bundle.parity.json") in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["bundle.parity.json"]
    bundle = export_bundle(network, tmp_path / "bundle", store=prepared.store, precision="auto")
    assert "fp16-storage was not taken: fp16-storage: " in bundle.manifest.precision["reason"]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]  # the old refusal is gone


def test_a_module_that_gives_nan_is_refused(prepared, tmp_path):
    network = prepared.network()
    network.head.bias.data.fill_(float("nan"))
    with pytest.raises(ParityError, match="non finite reference is 360 > 0"):
        export_bundle(network, tmp_path / "bundle", store=prepared.store)


def test_two_inputs_that_were_swapped_are_found(prepared, tmp_path):
    class Swapped(nn.Module):
        """What a dict in another order does to an export: torch and the graph disagree about two columns."""

        def __init__(self) -> None:
            super().__init__()
            self.schema = prepared.schema
            self.inner = prepared.network()

        def forward(self, batch):
            order = [1, 0, 2, 3] if torch.compiler.is_exporting() else [0, 1, 2, 3]
            return self.inner({**batch, "dense": batch["dense"][:, order]})

    with pytest.raises(ParityError, match=r"`model\.onnx` and the module differ by .* \(all\)"):
        export_bundle(Swapped(), tmp_path / "bundle", store=prepared.store)
    assert json.loads((tmp_path / "bundle.parity.json").read_text())["passed"] is False


def test_the_module_its_hooks_its_mode_and_the_random_state_are_left_alone(prepared, tmp_path):
    class Monitor:
        def __init__(self) -> None:
            self.largest: list[float] = []

        def watch(self, module, inputs, output):
            if output.abs().max() > 0:  # a branch on data: traced, it would stop the export
                self.largest.append(output.abs().max().item())

    monitor, network = Monitor(), prepared.network().train()
    handle = network.deep.register_forward_hook(monitor.watch)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    export_bundle(network, tmp_path / "bundle", store=prepared.store)
    assert monitor.largest == []
    assert network.training
    assert handle.id in network.deep._forward_hooks
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_compiled_network_in_a_lightning_module_exports(prepared, tmp_path):
    module = RankingModule(torch.compile(prepared.network(), backend="eager"))
    module.schema = prepared.schema
    bundle = export_bundle(module, tmp_path / "bundle", store=prepared.store)
    assert bundle.manifest.model == {
        "module": "lightning_mp.models.ranking.RankingModule",
        "network": "lightning_mp.networks.dcn_v2.DCNv2",
    }
    assert bundle.manifest.task == "click"


def test_weights_in_a_file_of_their_own_are_shared_by_both_graphs(prepared, network, tmp_path, monkeypatch):
    monkeypatch.setattr(core_graph, "EXTERNAL_FROM", 1000)
    bundle = export_bundle(network, tmp_path / "bundle", store=prepared.store)
    assert "model.onnx.data" in bundle.manifest.files
    expected = module_logits(network, EncodedRows(*encode_rows(prepared.schema, prepared.vocabularies, prepared.raw)))
    np.testing.assert_allclose(open_session(bundle.pipeline).run(["logit"], prepared.raw)[0], expected, atol=1e-5)


@pytest.mark.parametrize("kept", [("user", "item"), ("price", "age")])
def test_a_model_of_ids_or_of_numbers_alone_exports(prepared, tmp_path, kept):
    import pyarrow as pa

    from lightning_mp.data.store.feature_store import FeatureStore

    schema = FeatureSchema(features=tuple(f for f in prepared.schema.features if f.name in (*kept, "clicked")))
    words = {name: prepared.vocabularies[name] for name in kept if name in prepared.vocabularies}
    rows = {
        f.name: np.arange(40) % (f.vocabulary_size or 7) * (1 if f.vocabulary_size else 0.3) for f in schema.features
    }
    rows["clicked"] = np.arange(40) % 2
    store = FeatureStore(tmp_path / "store")
    store.write({"train": pa.table(rows)}, schema=schema, vocabularies=words)
    bundle = export_bundle(DCNv2(store.schema, hidden=(4,)), tmp_path / "bundle", store=store)
    assert [entry.name for entry in bundle.manifest.inputs] == list(kept)
    assert parity(bundle)["split"] == "train"


def test_another_schema_is_refused_by_feature_and_field(prepared, tmp_path):
    features = prepared.schema.features
    other = FeatureSchema(features=(replace(features[0], vocabulary_size=99), *features[1:]))
    with pytest.raises(SchemaError, match=r"feature `user` differs in `vocabulary_size`: the model has 99, store `"):
        export_bundle(DCNv2(other, hidden=(4,)), tmp_path / "bundle", store=prepared.store)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"precision": "fp16"},
            r"`precision` must be one of 'auto', 'fp32', 'fp16-storage', 'fp16-mixed', 'int8-dynamic', got 'fp16'",
        ),
        ({"rows": 1}, "`rows` must be at least 2, got 1"),
    ],
)
def test_arguments_that_cannot_work_are_refused(prepared, network, tmp_path, settings, words):
    with pytest.raises(ConfigurationError, match=words):
        export_bundle(network, tmp_path / "bundle", store=prepared.store, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_module_without_schema_is_refused(prepared, tmp_path):
    with pytest.raises(ConfigurationError, match="`Linear` has no `schema`"):
        export_bundle(nn.Linear(2, 1), tmp_path / "bundle", store=prepared.store)


def test_a_folder_with_other_files_is_never_replaced(prepared, network, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ArtifactError, match="is there already: a folder with other files"):
            export_bundle(network, tmp_path / "mine", store=prepared.store, overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_bundle_is_replaced_on_request_alone(prepared, network, copied):
    with pytest.raises(ArtifactError, match="is there already: a bundle"):
        export_bundle(network, copied, store=prepared.store)
    (copied / "manifest.json").write_text("{}")
    assert export_bundle(network, copied, store=prepared.store, overwrite=True).manifest.schema == prepared.schema


def test_a_module_of_one_s_own_with_its_own_score_exports(prepared, tmp_path):
    class Own(nn.Module):
        def __init__(self, schema: FeatureSchema) -> None:
            super().__init__()
            self.schema = schema
            self.linear = nn.Linear(4, 1)

        def forward(self, batch):
            return self.linear(batch["dense"]).squeeze(1)

        def score(self, logits):
            return torch.sigmoid(0.5 * logits)

    bundle = export_bundle(Own(prepared.schema), tmp_path / "bundle", store=prepared.store)
    logit, score = open_session(bundle.pipeline).run(["logit", "score"], prepared.raw)
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-0.5 * logit.astype(np.float64))), atol=1e-6)
    assert parity(bundle)["pipeline"]["silent"] == ["user", "item", "brand"]
    with pytest.raises(ParityError, match="the network has no embedding table"):
        export_bundle(Own(prepared.schema), tmp_path / "half", store=prepared.store, precision="fp16-storage")


def test_a_ranking_module_exports_what_predict_answers(prepared, tmp_path):
    module = RankingModule(partial(DCNv2, hidden=(8,)), task="preference")
    module.build(prepared.schema)
    bundle = export_bundle(module, tmp_path / "bundle", store=prepared.store)
    assert bundle.manifest.task == "preference"
    table = prepared.store.load("test")
    batch = {"ids": torch.from_numpy(table.ids[:50]), "dense": torch.from_numpy(table.dense[:50])}
    module.eval()
    with torch.no_grad():
        expected = module.predict_step(batch, 0)["score"].numpy()
    feeds = {"ids": table.ids[:50].astype(np.int64), "dense": table.dense[:50].astype(np.float32)}
    np.testing.assert_allclose(open_session(bundle.model).run(["score"], feeds)[0], expected, atol=1e-6)
