"""A bundle's rows are scored as by hand, and nothing that is not a number becomes one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_mp.errors import BundleError
from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.scorer import Scorer


@pytest.fixture(scope="module")
def scorer(tiny_bundle: Path) -> Scorer:
    return Scorer.open(tiny_bundle)


def test_random_rows_are_scored_as_by_hand(scorer, oracle):
    rng = np.random.default_rng()
    rows = []
    for _ in range(300):
        row = {"user": str(rng.choice(["u1", "u2", "007", "7", "new", "u1\0", "ü🎈"]))}
        if rng.random() < 0.7:
            row["hour"] = int(rng.choice([9, 23, 5, -1, 2**62]))
        if rng.random() < 0.7:
            row["price"] = float(rng.normal(10, 50)) if rng.random() < 0.5 else int(rng.integers(-100, 100))
        rows.append(row)
    scores = scorer.score(rows)
    expected = np.array([oracle(row) for row in rows])
    assert scores.logit.dtype == scores.score.dtype == np.float32
    assert np.abs(scores.logit - expected).max() < 1e-5
    assert np.abs(scores.score - 1 / (1 + np.exp(-expected))).max() < 1e-6
    for index in rng.choice(len(rows), 20):
        assert scorer.score([rows[index]]).logit[0] == scores.logit[index]


def test_numpy_scalars_are_taken_as_what_they_hold(scorer, oracle):
    row = {"user": np.str_("u1"), "hour": np.int32(9), "price": np.float32(2.5)}
    assert scorer.score([row]).logit[0] == pytest.approx(oracle({"user": "u1", "hour": 9, "price": 2.5}), abs=1e-6)


def test_no_rows_are_no_scores(scorer):
    assert len(scorer.score([]).logit) == 0


def test_a_row_without_a_finite_score_is_named(scorer):
    with pytest.raises(RequestError, match="row 1: its score is not a finite number") as caught:
        scorer.score([{"user": "u1"}, {"user": "u1", "price": 1e300}])
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("spoil", "words"),
    [("graph", "cannot be opened"), ("datatype", "`hour`, the graph takes tensor"), ("name", "input `cost`")],
)
def test_a_graph_that_is_not_what_the_manifest_says_is_refused(make_bundle, tmp_path, spoil, words):
    bundle = make_bundle(tmp_path / "spoilt", spoil=spoil)
    with pytest.raises(BundleError, match=words):
        Scorer.open(bundle.path)


def test_a_damaged_bundle_is_refused(make_bundle, tmp_path):
    bundle = make_bundle(tmp_path / "damaged")
    content = bytearray(bundle.pipeline.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.pipeline.write_bytes(content)
    with pytest.raises(BundleError, match="its bytes were altered"):
        Scorer.open(bundle.path)


def test_scoring_imports_numpy_and_onnxruntime_alone(tiny_bundle):
    program = f"""
import sys
from lightning_mp.serve.scorer import Scorer
print(Scorer.open({str(tiny_bundle)!r}).score([{{"user": "u1"}}]).score[0])
heavy = "torch lightning pytorch_lightning torchmetrics pyarrow onnx jinja2 duckdb scipy uvicorn orjson".split()
print([name for name in heavy if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[1] == "[]"
