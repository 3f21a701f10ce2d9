from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError, LightningMPWarning, ParityError
from lightning_mp.export.activation_ranges import activation_ranges, largest_by_module
from lightning_mp.export.check import check_bundle
from lightning_mp.export.core_graph import write_core
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.precision_policy import PrecisionPolicy
from lightning_mp.export.real_rows import RealRows
from lightning_mp.hardware.targets import Target


def parity(bundle) -> dict:
    return json.loads((bundle.path / "parity.json").read_text())


def test_auto_tries_what_the_target_gains_by_and_a_request_is_a_request():
    auto = PrecisionPolicy()
    assert auto.attempts(Target.named("cuda-sm75")) == ("fp16-mixed", "fp16-storage", "fp32")
    assert auto.attempts(Target.named("cpu-x86")) == ("fp16-storage", "fp32")
    assert PrecisionPolicy.of("fp32").attempts(Target.named("cuda-sm90")) == ("fp32",)
    with pytest.raises(ConfigurationError, match="there is no target 'tpu'"):
        Target.named("tpu")
    with pytest.raises(ConfigurationError, match="`largest_activation` must be positive, got 0"):
        PrecisionPolicy(largest_activation=0)


def test_what_a_device_does_with_the_file_is_written_down():
    quiet = PrecisionPolicy().run_time("fp16-mixed")
    assert quiet["cuda-sm80"] == {
        "provider": "CUDAExecutionProvider", "options": {"use_tf32": "0"}, "arithmetic": "float16 and float32",
    }  # fmt: skip
    assert quiet["cpu-x86"]["arithmetic"] == "float32"
    asked = PrecisionPolicy(tf32=True).run_time("fp32")
    assert [asked[name]["options"] for name in ("cuda-sm75", "cuda-sm80", "cpu-x86")] == [
        {"use_tf32": "0"}, {"use_tf32": "1"}, {},
    ]  # fmt: skip
    assert asked["cuda-sm80"]["arithmetic"] == "TF32"
    assert PrecisionPolicy(largest_activation=float("inf")).to_dict()["largest_activation"] is None


def test_the_strict_run_finds_what_this_machine_hides_and_the_automatic_policy_cures_it(prepared, plain_dcn, tmp_path):
    module = plain_dcn(prepared.schema, scale=60.0)
    everything = PrecisionPolicy(file="fp16-mixed", keep_in_fp32=("@output",), largest_activation=float("inf"))
    with pytest.raises(ParityError) as caught:
        export_bundle(module, tmp_path / "naive", store=prepared.store, precision=everything)
    words = caught.value.problem.split()
    assert caught.value.problem.startswith("strict float16 run: ")
    assert int(words[3]) > 30  # rows that are NaN or infinite
    assert f"hides {words[3]} of them" in caught.value.problem
    assert "it begins in `cross" in caught.value.problem
    assert not (tmp_path / "naive").exists()
    refusal = json.loads((tmp_path / "naive.parity.json").read_text())
    assert (refusal["passed"], refusal["layers"]["cross.layers.2"]) == (False, "float16")
    assert refusal["findings"] == [{"code": "MP306", "problem": caught.value.problem}]

    bundle = export_bundle(module, tmp_path / "bundle", store=prepared.store, precision="auto", target="cuda-sm80")
    report, precision = parity(bundle), bundle.manifest.precision
    assert precision["used"] == "fp16-mixed", precision["reason"]
    assert {"MP305"} == {finding["code"] for finding in report["findings"]}
    assert report["findings"][-1]["problem"].startswith("layer `cross.layers.2` stays in float32: it reaches |x| = ")
    assert (report["strict"]["non_finite"], report["strict"]["rows"]) == (0, 256)
    assert report["strict"]["logit_p99"] < 5e-3
    layers = precision["layers"]
    assert layers["cross.layers.2"].startswith("it reaches |x| = ")
    assert [layers[name] for name in ("deep.0", "deep.2", "head")] == ["an input layer", "float16", "an output layer"]
    assert precision["initializers"]["deep.2.weight"] == "FLOAT16"
    assert precision["initializers"]["deep.0.weight"] == "FLOAT"


def test_the_audit_sees_every_value_that_plain_torch_computes(prepared, plain_dcn, tmp_path):
    module = plain_dcn(prepared.schema, scale=60.0).eval()
    real = RealRows.read(prepared.store, prepared.schema, 4096)
    judged = real.judged()
    homes = write_core(module, judged.sizes, judged.rows[:4].tensors(), tmp_path / "model.onnx")
    ranges = activation_ranges(tmp_path / "model.onnx", homes, judged.rows)
    assert not (tmp_path / "every_value.onnx").exists()
    batch, products = judged.rows.tensors(), []
    with torch.no_grad():
        looked_up = [table(ids) for table, ids in zip(module.tables, batch["ids"].unbind(1), strict=True)]
        x = first = torch.cat([*looked_up, batch["dense"] * 60.0], dim=1)
        for layer in module.cross.layers:
            products.append(float((first * layer(x)).abs().max()))
            x = first * layer(x) + x
    inside = [entry for entry in ranges if entry.module == "cross"]
    found = [entry.largest for entry in inside if entry.operator == "Mul"]
    np.testing.assert_allclose(found, products, rtol=1e-5)
    assert largest_by_module(ranges)["cross"] >= max(products)
    assert all(entry.non_finite == 0 for entry in ranges)
    assert {"deep.0", "deep.2", "deep.4", "head"} <= {entry.module for entry in ranges}


def test_int8_is_refused_by_the_default_gates_and_warned_of_where_they_are_widened(prepared, plain_dcn, tmp_path):
    module = plain_dcn(prepared.schema)
    wide = {"logit.p99": 9.0, "ranking.overlap_mean": 0.0, "ranking.ties_added": 1.0, "auc.difference": 1.0,
            "ndcg.difference": 1.0, "mean_score.relative_difference": 9.0, "slices.worst_logit_p99": 9.0}  # fmt: skip
    with pytest.warns(LightningMPWarning, match="moves by up to .* with the other rows of its batch"):
        bundle = export_bundle(
            module, tmp_path / "bundle", store=prepared.store, precision="int8-dynamic", gates=wide
        )  # fmt: skip
    report = parity(bundle)
    assert report["batch_dependence"] > 0
    assert [finding["code"] for finding in report["findings"]] == ["MP312"]
    checked = {finding.code: finding for finding in check_bundle(bundle.path).findings}
    assert (checked["MP312"].ok, checked["MP312"].warning) == (True, True)
    assert {gate["path"]: gate["limit"] for gate in report["gates"]}["logit.p99"] == 9.0
    assert "INT8" in bundle.manifest.precision["initializers"].values()
    with pytest.raises(ConfigurationError, match=r"there is no gate `logit\.p42` for fp32"):
        export_bundle(module, tmp_path / "other", store=prepared.store, gates={"logit.p42": 1.0})
    assert not (tmp_path / "other").exists()
