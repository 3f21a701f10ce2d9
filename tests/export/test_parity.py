from __future__ import annotations

import json

import numpy as np
import pytest

from lightning_mp.export.parity import GATES, Comparison, judge


def comparison(change=lambda x: x, *, rows=5000, labels=True) -> Comparison:
    rng = np.random.default_rng()
    logits, lists = (rng.normal(-2, 1.5, n).astype(np.float32) for n in (rows, 40 * 50))
    clicked = (rng.random(rows) < 1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    return Comparison(
        reference=logits,
        exported=np.asarray(change(logits), dtype=np.float32),
        reference_lists=lists,
        exported_lists=np.asarray(change(lists), dtype=np.float32),
        length=50,
        labels=clicked if labels else None,
    )


def failed(report, policy):
    return [verdict["path"] for verdict in judge(report, policy) if not verdict["ok"]]


def test_the_same_logits_pass_every_gate_and_the_report_is_json():
    report = comparison().report()
    for policy in GATES:
        strict = {"strict": {"non_finite": 0, "logit_p99": 0.0}} if policy == "fp16-mixed" else {}
        assert failed({**report, **strict}, policy) == []
    with pytest.raises(KeyError):  # never passed unseen
        failed(report, "fp16-mixed")
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["auc"]["reference"] == report["auc"]["exported"] > 0.6


def test_a_small_shift_fails_float32_and_passes_float16_storage():
    report = comparison(lambda x: x + np.float32(3e-4)).report()
    assert failed(report, "fp32") == ["logit.max"]
    assert failed(report, "fp16-storage") == []
    assert report["logit"]["max"] == pytest.approx(3e-4, rel=1e-2)


def test_one_wrong_row_of_thousands_fails_float32_alone():
    def one(x):
        return np.concatenate([x[:-1], x[-1:] + 0.01])

    report = comparison(one).report()
    assert failed(report, "fp32") == ["logit.max"]
    assert failed(report, "fp16-storage") == []


def test_a_shift_of_every_logit_fails_the_mean_score_where_no_order_changes():
    report = comparison(lambda x: x + np.float32(4e-3)).report()
    assert failed(report, "fp16-storage") == ["mean_score.relative_difference"]
    assert report["ranking"]["overlap_min"] == 1.0


def test_noise_that_changes_top_lists_fails_the_ranking():
    rng = np.random.default_rng()
    report = comparison(lambda x: x + rng.normal(0, 0.3, len(x))).report()
    assert {"logit.p99", "ranking.overlap_mean", "auc.difference"} <= set(failed(report, "fp16-storage"))


def test_coarse_logits_fail_by_their_ties():
    report = comparison(lambda x: np.round(x * 8) / 8).report()
    assert "ranking.ties_added" in failed(report, "fp16-storage")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_logits_fail_whichever_side_they_are_on(bad):
    def spoil(x):
        return np.concatenate([x[:-1], [bad]])

    report = comparison(spoil).report()
    assert "non_finite.exported" in failed(report, "fp16-storage")
    assert json.dumps(report, allow_nan=False)
    swapped = comparison(spoil)
    report = Comparison(
        reference=swapped.exported, exported=swapped.reference, reference_lists=swapped.exported_lists,
        exported_lists=swapped.reference_lists, length=50,
    ).report()  # fmt: skip
    assert "non_finite.reference" in failed(report, "fp32")


def test_differences_of_saturated_logits_are_relative():
    # At 1000 the score is 1 to the last bit, and float32 itself steps by 6e-5.
    report = comparison(lambda x: x * np.float32(1 + 1e-6)).report()
    assert failed(report, "fp32") == []
    reference = np.array([1000.0, -3.0], dtype=np.float32)
    exported = np.array([1000.0005, -3.0], dtype=np.float32)
    report = Comparison(
        reference=reference, exported=exported, reference_lists=reference, exported_lists=exported, length=2
    ).report()
    assert report["logit"]["max"] < 1e-5 < report["logit"]["max_absolute"]
    assert report["logit"]["largest"] == 1000.0


def test_few_rows_and_one_class_are_reported_and_not_judged():
    rng = np.random.default_rng()
    few = comparison(rng.permutation, rows=60).report()
    assert few["auc"]["difference"] is None or few["auc"]["enough"] is False
    verdicts = {verdict["path"]: verdict["value"] for verdict in judge(few, "fp16-storage")}
    assert verdicts["auc.difference"] is None
    assert verdicts["ndcg.difference"] is None
    without = comparison(labels=False).report()
    assert without["auc"]["difference"] is None
    assert failed(without, "fp16-storage") == []


def test_no_rows_at_all_are_no_error():
    nothing = np.empty(0, dtype=np.float32)
    one = np.zeros(1, dtype=np.float32)
    report = Comparison(reference=nothing, exported=nothing, reference_lists=one, exported_lists=one, length=1).report()
    assert failed(report, "fp32") == []
