"""What mixed precision costs: the interval holds the truth, and the command says it."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp import DCNv2, FeatureSchema, FeatureStore, RankingDataModule, RankingModule
from lightning_mp.cli.main import main
from lightning_mp.errors import ConfigurationError, DataError, NumericError
from lightning_mp.running.against_fp32 import against_fp32
from lightning_mp.running.compared_scores import compare_scores
from lightning_mp.running.report import report_precision
from lightning_mp.schema import Feature

SMALL = [
    "--config=quickstart",
    "--data.synthetic.impressions=6000",
    "--data.synthetic.users=120",
    "--data.synthetic.items=40",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
]


def drawn(rng: np.random.Generator, users: int) -> tuple[np.ndarray, ...]:
    """Labels, two models' probabilities that are wrong in their own ways, and users: rows of a known truth."""
    group = np.repeat(np.arange(users), rng.integers(1, 10, users))
    logit = rng.normal(-1, 1, users)[group] + rng.normal(size=len(group))
    labels = rng.random(len(group)) < 1 / (1 + np.exp(-logit))
    exact = logit + rng.normal(0, 0.3, len(group))
    mixed = exact + rng.normal(0, 0.2, len(group)) + 0.05
    return labels, 1 / (1 + np.exp(-mixed)), 1 / (1 + np.exp(-exact)), group


def test_both_intervals_hold_the_truth_as_often_as_they_say():
    rng, runs = np.random.default_rng(), 300
    labels, mixed, exact, _ = drawn(rng, 200_000)
    losses = [-np.where(labels, np.log(scores), np.log1p(-scores)).mean() for scores in (mixed, exact)]
    areas = [area(scores, labels) for scores in (mixed, exact)]
    truth = {"auc": areas[0] - areas[1], "log_loss": losses[0] - losses[1]}
    held = dict.fromkeys(truth, 0)
    for _ in range(runs):
        labels, mixed, exact, group = drawn(rng, 150)
        for one in compare_scores(mixed, exact, labels, users=group):
            held[one.metric] += one.difference.low <= truth[one.metric] <= one.difference.high
    spread = math.sqrt(0.95 * 0.05 / runs)
    assert all(abs(count / runs - 0.95) < 5 * spread + 0.01 for count in held.values()), held


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """AUC as the share of pairs in the right order; no scores tie."""
    rank = np.empty(len(scores))
    rank[np.argsort(scores)] = np.arange(len(scores))
    count = int(labels.sum())
    return float((rank[labels].sum() - count * (count - 1) / 2) / (count * (len(scores) - count)))


def test_the_verdict_is_sure_or_says_that_it_is_not():
    rng = np.random.default_rng()
    labels, _, exact, group = drawn(rng, 3000)
    noisy = 1 / (1 + np.exp(-(np.log(exact / (1 - exact)) + rng.normal(0, 3, len(exact)))))
    verdicts = {
        name: {one.metric: one.verdict for one in compare_scores(scores, exact, labels, users=group)}
        for name, scores in {"half": exact.astype(np.float16), "noisy": noisy, "same": exact}.items()
    }
    assert set(verdicts["half"].values()) == set(verdicts["same"].values()) == {"holds"}
    assert set(verdicts["noisy"].values()) == {"fails"}
    few = slice(0, 60)
    unsure = compare_scores(rng.permutation(exact[few]), exact[few], np.arange(60) % 2, users=group[few])
    assert unsure[0].worst > unsure[0].best


class Worse(RankingModule):
    """Answers at random where it runs under autocast."""

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = super().forward(batch)
        return logits + 5 * torch.randn_like(logits) if torch.is_autocast_enabled("cpu") else logits


@pytest.fixture
def data() -> RankingDataModule:
    rng = np.random.default_rng()
    rows = 3000
    table = {
        "a": rng.normal(size=rows).astype(np.float32), "click": (rng.random(rows) < 0.4).astype(np.float32),
    }  # fmt: skip
    parts = {
        "train": pa.table({name: column[:2000] for name, column in table.items()}),
        "validation": pa.table({name: column[2000:] for name, column in table.items()}),
    }
    label = Feature(name="click", kind="numeric", role="label", source_dtype="float", stored_dtype="float32",
                    missing="refuse")  # fmt: skip
    number = Feature(name="a", kind="numeric", role="context", source_dtype="float", stored_dtype="float32")
    FeatureStore("store").write(parts, schema=FeatureSchema(features=(number, label)))
    return RankingDataModule(store="store", batch_size=500)


def fitted(kind: type[RankingModule], data: RankingDataModule, precision: str) -> tuple[pl.Trainer, RankingModule, str]:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, precision=precision, **quiet)
    module = kind(partial(DCNv2, hidden=(8,)), optimizer=partial(torch.optim.Adam, lr=1e-2))
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(f"{kind.__name__}.ckpt")
    return trainer, module, f"{kind.__name__}.ckpt"


@pytest.mark.filterwarnings("ignore:Precision .* is not supported by the model summary")
def test_the_same_checkpoint_in_both_precisions(data, capsys):
    trainer, module, checkpoint = fitted(RankingModule, data, "bf16-mixed")
    found = against_fp32(trainer, module, data, checkpoint=checkpoint)
    assert (found.rows, found.precision, found.float32_checkpoint) == (1000, "bf16-mixed", checkpoint)
    assert 0 < abs(found.metrics[1].difference.mean) < 0.01
    with torch.no_grad():
        part = FeatureStore("store").load("validation")
        logits = module.float().eval()({"dense": torch.from_numpy(np.asarray(part.dense)).float()})
    labels = torch.from_numpy(np.asarray(part.labels[:, 0]))
    exact = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double())
    assert found.metrics[1].float32 == pytest.approx(float(exact), abs=1e-6)
    limited = pl.Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, limit_val_batches=1,
                         enable_progress_bar=False)  # fmt: skip
    assert against_fp32(limited, module, data, checkpoint=checkpoint).rows == 500


@pytest.mark.filterwarnings("ignore:Precision .* is not supported by the model summary")
def test_a_precision_that_costs_ends_with_an_error_and_a_file(data, capsys):
    trainer, module, checkpoint = fitted(Worse, data, "bf16-mixed")
    with pytest.raises(NumericError, match="`bf16-mixed` is worse than float32") as caught:
        report_precision(trainer, module, data, checkpoint, True)
    assert caught.value.exit_code == 4
    assert "bf16-mixed costs at least" in capsys.readouterr().out
    kept = json.loads((Path(trainer.default_root_dir) / "against_fp32.json").read_text())
    assert kept["verdict"] == "fails"


def test_a_float32_run_has_nothing_to_compare_but_with_another(data):
    trainer, module, checkpoint = fitted(RankingModule, data, "32-true")
    with pytest.raises(ConfigurationError, match="nothing to compare"):
        against_fp32(trainer, module, data, checkpoint=checkpoint)
    found = against_fp32(trainer, module, data, checkpoint=checkpoint, float32_checkpoint=checkpoint)
    assert found.verdict == "holds"
    assert found.metrics[0].difference.mean == 0


def test_a_store_without_labels_is_refused_before_anything_is_scored(tmp_path):
    price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float32")
    store = FeatureStore(tmp_path / "store")
    table = pa.table({"price": np.ones(8, dtype=np.float32)})
    store.write({"train": table, "validation": table}, schema=FeatureSchema(features=(price,)))
    trainer = pl.Trainer(accelerator="cpu", devices=1, precision="bf16-mixed", logger=False, enable_checkpointing=False)
    datamodule = RankingDataModule(store=str(store.path))
    with pytest.raises(DataError, match=r"compares scores with labels, and the store `.*store` has none"):
        against_fp32(trainer, RankingModule(DCNv2), datamodule, checkpoint=str(tmp_path / "none.ckpt"))


def test_the_command_tells_what_the_precision_costs(capsys):
    plugin = {"class_path": "lightning_mp.mixed_precision", "init_args": {"precision": "bf16-mixed", "device": "cpu"}}
    bf16 = f"--trainer.plugins={json.dumps(plugin)}"
    assert main(["fit", *SMALL, bf16]) == 0
    (checkpoint,) = Path("runs/quickstart/version_0/checkpoints").glob("*.ckpt")
    capsys.readouterr()
    assert main(["validate", *SMALL, bf16, f"--ckpt_path={checkpoint}", "--against-fp32"]) == 0
    printed = capsys.readouterr().out
    assert "bf16-mixed against float32, on" in printed
    assert "kept in: runs/quickstart/against_fp32.json" in printed
    kept = json.loads(Path("runs/quickstart/against_fp32.json").read_text())
    assert [one["metric"] for one in kept["metrics"]] == ["auc", "log_loss"]
    assert kept["metrics"][0]["difference"]["low"] <= kept["metrics"][0]["difference"]["high"]
    assert main(["validate", *SMALL, bf16, f"--ckpt_path={checkpoint}", "--against-fp32", "nowhere.ckpt"]) == 5
    assert "there is no checkpoint `nowhere.ckpt`" in capsys.readouterr().err
