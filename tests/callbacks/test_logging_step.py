from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp.callbacks.logging_step import is_logging_step


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def library(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


def asked(library: Any, *, stop_at: int = -1, manual: bool = False, **settings: Any) -> list[tuple[bool, bool]]:
    """What we say and what Lightning says, in every hook of a training."""
    answers: list[tuple[bool, bool]] = []

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self.layer(batch[0]).mean()
            if manual and batch_idx % 2:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    class Ask(library.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            answers.append((is_logging_step(trainer), expected(trainer)))

        on_before_backward = on_before_optimizer_step = on_train_batch_start

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.should_stop = batch_idx == stop_at
            answers.append((is_logging_step(trainer), expected(trainer)))

    def expected(trainer: Any) -> bool:
        return bool(trainer._logger_connector.should_update_logs or trainer.fast_dev_run)

    loader = DataLoader(TensorDataset(torch.randn(14, 2)), batch_size=2)
    run = library.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Ask()], **settings,
    )  # fmt: skip
    run.fit(Module(), loader, loader)
    return answers


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("every", [1, 3, 5])
def test_it_says_what_lightning_says(library, every, manual):
    for settings in ({}, {"fast_dev_run": 2}) if manual else ({"accumulate_grad_batches": 3}, {"stop_at": 4}):
        answers = asked(library, log_every_n_steps=every, manual=manual, **settings)
        assert len(answers) > 5
        assert all(ours == theirs for ours, theirs in answers)
        assert any(ours for ours, _ in answers)


def test_a_trainer_that_never_logs_has_no_such_step(library):
    assert not any(ours or theirs for ours, theirs in asked(library, log_every_n_steps=0))
