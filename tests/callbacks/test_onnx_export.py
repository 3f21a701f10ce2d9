"""Fits on a small store, exported by the callback."""

from __future__ import annotations

import csv
from functools import partial
from importlib import import_module
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_mp.bundle import Bundle
from lightning_mp.callbacks.onnx_export import OnnxExport
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.errors import ArtifactError, ConfigurationError, LightningMPWarning, ParityError
from lightning_mp.hardware.session import open_session
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import Feature, FeatureSchema


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    rng, users = np.random.default_rng(), Vocabulary([f"u{n}" for n in range(30)])
    schema = FeatureSchema(
        features=(
            Feature(name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32",
                    vocabulary_size=users.size, vocabulary_digest=users.digest),
            Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16",
                    missing="constant", missing_value=0.0),
            Feature(name="clicked", kind="numeric", role="label", source_dtype="bool", stored_dtype="float32"),
        )
    )  # fmt: skip

    def rows(count: int) -> pa.Table:
        price = rng.normal(size=count)
        return pa.table({
            "user": rng.integers(0, users.size, count), "price": price,
            "clicked": (rng.random(count) < 1 / (1 + np.exp(-2 * price))).astype(np.float32),
        })  # fmt: skip

    made = FeatureStore(tmp_path_factory.mktemp("store") / "s")
    parts = {name: rows(count) for name, count in (("train", 400), ("validation", 80), ("test", 120))}
    made.write(parts, schema=schema, vocabularies={"user": users})
    return made


def fit(
    store: FeatureStore,
    *callbacks: pl.Callback,
    module: RankingModule | None = None,
    epochs: int = 2,
    **settings: object,
) -> tuple[pl.Trainer, RankingModule]:
    module = module or RankingModule(
        partial(DCNv2, embedding_dim=4, hidden=(8,)), optimizer=partial(torch.optim.Adam, lr=0.05)
    )
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = pl.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=list(callbacks), **{**quiet, **settings})
    trainer.fit(module, datamodule=RankingDataModule(store=str(store.path), batch_size=64))
    return trainer, module


def answers(bundle: Bundle, store: FeatureStore, split: str = "test") -> np.ndarray:
    table = store.load(split)
    feeds = {"ids": table.ids.astype(np.int64), "dense": table.dense.astype(np.float32)}
    return open_session(bundle.model).run(["logit"], feeds)[0]


def logits(module: RankingModule, store: FeatureStore, split: str = "test") -> np.ndarray:
    table = store.load(split)
    with torch.no_grad():
        return module.eval()({"ids": torch.from_numpy(table.ids), "dense": torch.from_numpy(table.dense)}).numpy()


def test_the_trained_model_stands_in_the_bundle_and_its_parity_in_the_log(store, tmp_path):
    export = OnnxExport(tmp_path / "bundle", precision="fp32")
    _, module = fit(store, export, logger=CSVLogger(tmp_path / "logs"), log_every_n_steps=1)
    assert export.bundle is not None
    assert export.bundle.path == tmp_path / "bundle"
    np.testing.assert_allclose(answers(export.bundle, store), logits(module, store), atol=1e-5)
    (log,) = (tmp_path / "logs").rglob("metrics.csv")
    with log.open() as file:
        last = [row for row in csv.DictReader(file) if row["parity/max_logit_difference"]][-1]
    assert float(last["parity/max_logit_difference"]) <= 1e-4
    assert float(last["parity/top_10_overlap"]) == 1.0
    assert float(last["parity/p99_logit_difference"]) <= float(last["parity/max_logit_difference"])
    assert float(last["parity/auc_difference"]) < 1e-3


def test_the_best_checkpoint_is_exported_where_there_is_one(store, tmp_path):
    class Spoil(pl.Callback):
        """Ruins the weights after the first epoch, so that the best checkpoint is not the last one."""

        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                torch.nn.init.constant_(pl_module.network.head.bias, 50.0)

    keep = ModelCheckpoint(tmp_path / "checkpoints", monitor="val_loss", mode="min")
    export = OnnxExport(tmp_path / "bundle", precision="fp32")
    _, last = fit(store, Spoil(), keep, export, enable_checkpointing=True)
    best = RankingModule(DCNv2(store.schema, embedding_dim=4, hidden=(8,)))
    best.load_state_dict(torch.load(keep.best_model_path, weights_only=True)["state_dict"])
    assert export.bundle is not None
    np.testing.assert_allclose(answers(export.bundle, store), logits(best, store), atol=1e-5)
    assert np.abs(logits(last, store) - logits(best, store)).min() > 10


def test_a_fit_in_bfloat16_is_exported_in_float32_and_left_as_it_is(store, tmp_path):
    seen: list[torch.Tensor] = []
    module = RankingModule(partial(DCNv2, embedding_dim=4, hidden=(8,)))

    class Watch(pl.Callback):
        def on_fit_start(self, trainer, pl_module):
            self.handle = pl_module.network.head.register_forward_hook(lambda *args: seen.append(args[-1].detach()))

    watch, export = Watch(), OnnxExport(tmp_path / "bundle", precision="fp32")
    fit(store, watch, export, module=module, epochs=1, precision="bf16-mixed")
    count = len(seen)
    assert watch.handle.id in module.network.head._forward_hooks
    assert not any(isinstance(tensor, torch._subclasses.FakeTensor) for tensor in seen)
    assert export.bundle is not None
    np.testing.assert_allclose(answers(export.bundle, store), logits(module, store), atol=1e-5)
    assert len(seen) == count + 1  # that of `logits`, none of the export
    assert set(export.bundle.manifest.precision["initializers"].values()) <= {"FLOAT", "INT64"}


def test_a_second_fit_replaces_the_bundle(store, tmp_path):
    export = OnnxExport(tmp_path / "bundle", precision="fp32")
    _, module = fit(store, export, epochs=1)
    before = answers(export.bundle, store)
    fit(store, export, module=module, epochs=2)
    after = answers(export.bundle, store)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, logits(module, store), atol=1e-5)


def test_a_folder_that_cannot_be_written_stops_the_fit_before_it_starts(store, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    (tmp_path / "file").touch()
    for path, words in ((tmp_path / "mine", "a folder with other files"), (tmp_path / "file", "is a file")):
        module = RankingModule(partial(DCNv2, hidden=(4,)))
        with pytest.raises(ArtifactError, match=words):
            fit(store, OnnxExport(path), module=module)
        assert module._trainer is None or module.trainer.global_step == 0


class NotANumber(DCNv2):
    def forward(self, batch):
        logits = super().forward(batch)
        return logits if self.training else logits * float("nan")


def test_a_refusal_fails_a_strict_fit_and_warns_in_another(store, tmp_path):
    # The validation loop would log NaN as AUC, and say so; it is left out.
    with pytest.raises(ParityError, match="non finite reference is 120 > 0"):
        fit(store, OnnxExport(tmp_path / "b"), module=RankingModule(NotANumber), epochs=1, limit_val_batches=0)
    export = OnnxExport(tmp_path / "b", strict=False)
    with pytest.warns(LightningMPWarning, match=r"`OnnxExport` wrote no bundle: .*non finite reference"):
        trainer, _ = fit(store, export, module=RankingModule(NotANumber), epochs=1, limit_val_batches=0)
    assert trainer.state.finished
    assert export.bundle is None
    assert not (tmp_path / "b").exists()
    assert (tmp_path / "b.parity.json").is_file()


def test_a_folder_that_cannot_be_written_is_one_warning_where_the_fit_is_not_to_fail(store, tmp_path):
    (tmp_path / "file").touch()
    export = OnnxExport(tmp_path / "file", strict=False)
    with pytest.warns(LightningMPWarning, match="is a file, a bundle is a folder") as caught:
        fit(store, export, epochs=1)
    assert [warning.category for warning in caught].count(LightningMPWarning) == 1
    assert export.bundle is None


class Plain(RankingModule):
    """A module that brings its own batches, without a datamodule."""

    def __init__(self, store: FeatureStore) -> None:
        super().__init__(DCNv2(store.schema, hidden=(4,)))
        self.data = RankingDataModule(store=str(store.path), batch_size=64)

    def train_dataloader(self):
        return self.data.train_dataloader()

    def val_dataloader(self):
        return self.data.val_dataloader()


def test_without_a_datamodule_the_store_is_asked_for_or_given(store, tmp_path):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "max_epochs": 1,
             "enable_model_summary": False, "accelerator": "cpu"}  # fmt: skip
    with pytest.raises(ConfigurationError, match="found no feature store: the Trainer has no datamodule"):
        pl.Trainer(callbacks=[OnnxExport(tmp_path / "b")], **quiet).fit(Plain(store))
    export = OnnxExport(tmp_path / "b", store=store.path)
    pl.Trainer(callbacks=[export], **quiet).fit(Plain(store))
    assert export.bundle is not None


def test_it_works_in_the_other_trainer_package(store, tmp_path):
    other = import_module("pytorch_lightning")

    class Net(other.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.schema = DCNv2(store.schema, hidden=(4,)), store.schema

        def forward(self, batch):
            return self.network(batch)

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.binary_cross_entropy_with_logits(self(batch), batch["labels"])

        def train_dataloader(self):
            return RankingDataModule(store=str(store.path), batch_size=64).train_dataloader()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    export = OnnxExport(tmp_path / "b", store=store.path)
    trainer = other.Trainer(callbacks=[export], logger=False, enable_progress_bar=False, enable_checkpointing=False,
                            enable_model_summary=False, max_epochs=1, accelerator="cpu")  # fmt: skip
    trainer.fit(Net())
    assert export.bundle is not None
    assert Path(export.bundle.path, "pipeline.onnx").is_file()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"precision": "fp8"},
            "`precision` must be one of 'auto', 'fp32', 'fp16-storage', 'fp16-mixed', 'int8-dynamic', got 'fp8'",
        ),
        ({"target": "cuda-sm42"}, "`target` must be one of 'this', .*, got 'cuda-sm42'"),
    ],
)
def test_arguments_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        OnnxExport("bundle", **settings)


class Stranger(pl.LightningModule):
    """A module that knows neither schema nor store, and declares a sample batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(20, 4), torch.nn.Linear(6, 1)
        self.example_input_array = {"user": torch.zeros(4, dtype=torch.int64), "dense": torch.randn(4, 2)}

    def forward(self, user, dense):
        return self.head(torch.cat([self.table(user), dense], dim=1)).squeeze(1)

    def training_step(self, batch, batch_idx):
        user, dense, clicked = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(self(user, dense), clicked)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_module_without_schema_or_store_is_exported_from_its_sample_batch(tmp_path):
    rows = torch.utils.data.TensorDataset(
        torch.randint(20, (256,)), torch.randn(256, 2), torch.randint(2, (256,)).float()
    )  # fmt: skip
    export = OnnxExport(tmp_path / "bundle", precision="fp32", labels="clicked")
    module = Stranger()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[export],
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=64))
    assert export.bundle is not None
    assert [tensor.name for tensor in export.bundle.manifest.tensors] == ["user", "dense"]
    assert export.bundle.manifest.precision["settings"]["trained"] == "32-true"
    feeds = {"user": np.arange(5), "dense": np.ones((5, 2), np.float32)}
    with torch.no_grad():
        expected = module.eval()(torch.arange(5), torch.ones(5, 2)).numpy()
    np.testing.assert_allclose(open_session(export.bundle.model).run(["logit"], feeds)[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"fast_dev_run": 1}, "a fit with `fast_dev_run` is a trial"),
        ({"epochs": 0}, "this fit took no optimizer step"),
        ({"limit_train_batches": 0}, "this fit took no optimizer step"),
    ],
)
def test_a_fit_that_trained_nothing_exports_nothing(store, tmp_path, capsys, caplog, settings, why):
    old = OnnxExport(tmp_path / "old", precision="fp32")
    fit(store, old, epochs=1)
    before = {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()}
    for name in ("old", "new"):
        caplog.clear()
        export = OnnxExport(tmp_path / name, precision="fp32")
        with caplog.at_level("INFO", logger="lightning.pytorch"):
            fit(store, export, **{"epochs": 1, **settings})
        assert export.bundle is None
        kept = f"; `{tmp_path / name}` is left as it is" if name == "old" else ""
        said = caplog.text + capsys.readouterr().err
        assert f"`OnnxExport` wrote no bundle: {why}{kept}" in said
    assert {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_a_resumed_fit_that_takes_no_further_step_exports_nothing(store, tmp_path):
    trainer, _ = fit(store, epochs=1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    for epochs, wrote in ((1, False), (2, True)):
        export = OnnxExport(tmp_path / "bundle", precision="fp32")
        module = RankingModule(partial(DCNv2, embedding_dim=4, hidden=(8,)), optimizer=torch.optim.Adam)
        again = pl.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[export], logger=False,
                           enable_progress_bar=False, enable_model_summary=False,
                           enable_checkpointing=False)  # fmt: skip
        data = RankingDataModule(store=str(store.path), batch_size=64)
        again.fit(module, datamodule=data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
        assert (export.bundle is not None) == wrote


class StepsByItself(Plain):
    """Steps optimizers of its own, which the Trainer does not count."""

    def __init__(self, store: FeatureStore) -> None:
        super().__init__(store)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(self(batch), batch["labels"]).backward()
        optimizer.step()


def test_steps_that_the_trainer_does_not_count_are_steps(store, tmp_path):
    export = OnnxExport(tmp_path / "b", precision="fp32", store=store.path)
    trainer = pl.Trainer(callbacks=[export], accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(StepsByItself(store))
    assert trainer.global_step == 0
    assert export.bundle is not None
