from __future__ import annotations

import random
import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics import MeanMetric

from lightning_mp.callbacks.random_state import random_state, set_random_state
from lightning_mp.callbacks.resumable_random_state import ResumableRandomState
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.errors import LightningMPWarning


class Rows(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, rows):
        return {"x": torch.sin(rows.float())[:, None].repeat(1, 4), "row": rows}


class Model(pl.LightningModule):
    """Dropout, draws from every generator, and three kinds of sums over an epoch."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.metric = MeanMetric()
        self.epochs = []

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch["x"]).square().mean() * (1 + random.random() + np.random.rand())  # noqa: NPY002 (the global state is what is resumed)
        loss = loss + (self.layers[0].weight - 1).square().mean()
        self.log("mean", loss.detach(), on_step=False, on_epoch=True)
        self.log("most", loss.detach(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("least", loss.detach(), on_step=False, on_epoch=True, reduce_fx="min")
        if batch_idx % 3 == 2:
            self.log("sum", loss.detach(), on_step=False, on_epoch=True, reduce_fx="sum")
        self.metric.update(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.epochs.append(float(self.metric.compute()))
        self.metric.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class SaveAfter(Callback):
    """A checkpoint after each batch of the run, in the middle of an accumulation too."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        number = trainer.current_epoch * 10 + batch_idx
        trainer.save_checkpoint(self.folder / f"{number}.ckpt")


def fit(folder=None, resume=None, *, callbacks=None, loader=None, accumulate=1, lightning=pl):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (the global state is what is resumed)
    model = Model() if lightning is pl else plain_model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        accumulate_grad_batches=accumulate,
        callbacks=[
            *([ResumableRandomState()] if callbacks is None else callbacks),
            *([SaveAfter(folder)] if folder else []),
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader or ResumableLoader(Rows(), batch_size=4, seed=1), ckpt_path=resume)
    sums = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {
        "weights": [p.tolist() for p in model.parameters()],
        "sums": sums,
        "epochs": model.epochs,
        "random": random_state(),
    }


def plain_model():
    methods = {name: value for name, value in vars(Model).items() if callable(value) and name != "__init__"}

    def init(self):
        pytorch_lightning.LightningModule.__init__(self)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.metric, self.epochs = MeanMetric(), []

    return type("PlainModel", (pytorch_lightning.LightningModule,), {**methods, "__init__": init})()


def same_random(one, other):
    return (
        one["python"] == other["python"]
        and torch.equal(one["torch"], other["torch"])
        and torch.equal(one["numpy"][0], other["numpy"][0])
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_weights_sums_and_generators_from_every_checkpoint(tmp_path, accumulate):
    through = fit(tmp_path, accumulate=accumulate)
    for number in range(19):
        resumed = fit(resume=tmp_path / f"{number}.ckpt", accumulate=accumulate)
        assert resumed["weights"] == through["weights"], number
        assert same_random(resumed["random"], through["random"])
        for name in ("mean", "most", "least"):
            assert resumed["sums"][name] == through["sums"][name], (number, name)
        assert resumed["sums"]["sum"] == pytest.approx(through["sums"]["sum"], rel=1e-6)
        assert resumed["epochs"] == through["epochs"][-len(resumed["epochs"]) :]


def test_without_it_they_differ(tmp_path):
    through = fit(tmp_path, callbacks=[])
    resumed = fit(resume=tmp_path / "4.ckpt", callbacks=[])
    assert resumed["weights"] != through["weights"]
    assert resumed["epochs"][0] != through["epochs"][0]


def test_in_a_trainer_of_the_other_package(tmp_path):
    through = fit(tmp_path, lightning=pytorch_lightning)
    resumed = fit(resume=tmp_path / "4.ckpt", lightning=pytorch_lightning)
    assert resumed["weights"] == through["weights"]
    assert resumed["epochs"] == through["epochs"]


def test_a_checkpoint_loads_with_weights_only(tmp_path):
    fit(tmp_path)
    checkpoint = torch.load(tmp_path / "4.ckpt", weights_only=True)
    saved = checkpoint["lightning_mp.ResumableRandomState"]
    assert len(saved["random"]) == 1
    assert saved["epoch"]["metrics"]["metric"]["count"] == 5
    assert torch.load(tmp_path / "9.ckpt", weights_only=True)["lightning_mp.ResumableRandomState"]["epoch"] == {}


def test_a_loader_that_cannot_resume_is_named_at_the_start():
    class Rowwise(TensorDataset):
        def __getitem__(self, index):
            return {"x": super().__getitem__(index)[0]}

    loader = DataLoader(Rowwise(torch.ones(8, 4)), batch_size=4)
    with pytest.warns(LightningMPWarning) as caught:
        fit(loader=loader)
    told = [str(warning.message) for warning in caught if warning.category is LightningMPWarning]
    assert len(told) == 1
    assert "loader of `Model`, a `DataLoader` over `Rowwise`, has no `state_dict`" in told[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=LightningMPWarning)
        fit()


def test_another_number_of_processes_is_told(tmp_path):
    fit(tmp_path)
    checkpoint = torch.load(tmp_path / "4.ckpt", weights_only=True)
    saved = checkpoint["lightning_mp.ResumableRandomState"]
    saved["random"] = saved["random"] * 2
    torch.save(checkpoint, tmp_path / "two.ckpt")
    with pytest.warns(LightningMPWarning, match="generators of 2 processes, now there are 1"):
        fit(resume=tmp_path / "two.ckpt")


def test_all_generators_go_on_where_they_were():
    def draw():
        return random.random(), random.gauss(0, 1), np.random.randn(3).tolist(), torch.rand(3).tolist()  # noqa: NPY002 (the global state is what is resumed)

    draw()
    np.random.randn()  # noqa: NPY002 -- leaves a second normal number for the next call
    random.gauss(0, 1)
    state = random_state()
    first = draw()
    set_random_state(state)
    assert draw() == first
