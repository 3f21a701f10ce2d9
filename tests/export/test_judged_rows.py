from __future__ import annotations

import numpy as np

from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.export.judged_rows import JudgedRows, slices_of


def test_a_harm_to_one_slice_alone_is_seen_and_named():
    rng = np.random.default_rng()
    brand = rng.choice(np.array(["a", "b", ""]), 6000, p=[0.9, 0.08, 0.02])
    labels = (rng.random(6000) < 0.4).astype(np.float32)
    logits = rng.normal(size=6000).astype(np.float32)
    worse = logits + np.where(brand == "b", 0.02, 0.0).astype(np.float32)
    judged = JudgedRows(split="test", rows=EncodedRows.of({"x": logits}), labels=labels,
                        slices=slices_of({"brand": brand}, labels))  # fmt: skip
    found = judged.by_slice(logits, worse)
    assert found["worst"] == "brand = b"
    np.testing.assert_allclose(found["worst_logit_p99"], 0.02, rtol=1e-3)
    assert set(found["slices"]) == {"brand = a", "brand = b", "brand = unknown", "label > 0", "label = 0"}
    assert found["slices"]["brand = a"]["logit_p99"] == 0.0
    assert found["slices"]["brand = b"]["mean_score_difference"] > 1e-3
    assert found["slices"]["label > 0"]["auc_difference"] is None  # one class


def test_a_small_slice_is_reported_and_not_judged():
    logits = np.zeros(1000, dtype=np.float32)
    slices = {"few": np.arange(1000) < 199, "none": np.zeros(1000, dtype=bool)}
    judged = JudgedRows(split="test", rows=EncodedRows.of({"x": logits}), slices=slices)
    found = judged.by_slice(logits, logits + 1)
    assert (found["worst"], found["worst_logit_p99"]) == (None, None)
    assert list(found["slices"]) == ["few"]


def test_columns_of_many_values_give_no_slice_but_for_the_unknown():
    keys = np.array([f"u{n}" if n % 10 else "" for n in range(1000)])
    assert list(slices_of({"user": keys, "constant": np.full(1000, "x")}, None)) == ["user = unknown"]
