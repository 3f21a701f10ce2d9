"""The recipes for real logs run to a served bundle, in a smaller form; skipped where the data sets are absent."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.serve.scorer import Scorer


def recipe(name, *options):
    command = [sys.executable, "-W", "ignore", "-m", "lightning_mp", "fit", "--config", name, *options,
               "--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["event_log", "retail_ranking"])
def test_a_real_log_becomes_a_bundle_that_scores_what_happened_before(shared, name):
    if name == "event_log":
        told = recipe(name, "--data.path", str(shared / "data" / "rees46" / "2019-Oct_head.csv"))
        assert "filled from: category_id" in told
        assert "49 of 434 `category_id` (11.3%) have none at all" in told
    else:
        folder = shared / "data" / "complete_journey"
        tables = {"": "transactions", ".items": "products", ".users": "demographics"}
        paths = [
            word for key, file in tables.items() for word in (f"--data{key}.path", str(folder / f"{file}.parquet"))
        ]
        told = recipe(name, *paths, "--data.negatives.per_positive", "1", "--trainer.limit_train_batches", "40")
        assert "75,000 rows drawn, uniform" in told
    assert "values of histories replayed from earlier events alone, all equal" in told
    assert "the simplest model has AUC" in told
    assert "running user + item mean" in told
    schema = FeatureStore(f"runs/{name}/store").schema
    histories = [feature.name for feature in schema.features if feature.delay_us is not None]
    assert len(histories) >= 5
    scorer = Scorer.open(f"runs/{name}/bundle")
    row = {
        f.name: 1.0 if f.kind == "numeric" else "x" if f.source_dtype == "string" else 7
        for f in (*schema.ids, *schema.dense)
    }
    low, high = (float(scorer.score([{**row, histories[0]: value}]).logit[0]) for value in (0.0, 50.0))
    assert np.isfinite([low, high]).all()
    assert low != high
