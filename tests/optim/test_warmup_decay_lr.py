from __future__ import annotations

import io

import pytest
import torch

from lightning_mp.errors import ConfigurationError, LightningMPWarning
from lightning_mp.optim.warmup_decay_lr import WarmupDecayLR


def optimizer(*lrs: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs])


def rates(schedule: WarmupDecayLR, steps: int) -> list[list[float]]:
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in schedule.optimizer.param_groups])
        schedule.optimizer.step()
        schedule.step()
    return found


def test_it_is_the_formula_in_every_step_and_group():
    bases = (5e-5, 4e-4)
    found = rates(WarmupDecayLR(optimizer(*bases), warmup_steps=30, steps_per_epoch=7), 100)
    for step, lrs in enumerate(found):
        for base, lr in zip(bases, lrs, strict=True):
            target = min(base * 0.9 ** (step // 7 // 3), 2e-4)
            wanted = target if step >= 30 else 1e-6 + (target - 1e-6) * step / 30
            assert lr == pytest.approx(wanted, rel=1e-12)


def test_it_goes_on_after_a_resume_read_with_weights_only():
    whole = rates(WarmupDecayLR(optimizer(5e-5), warmup_steps=10, steps_per_epoch=4), 40)
    first = WarmupDecayLR(optimizer(5e-5), warmup_steps=10, steps_per_epoch=4)
    begun = rates(first, 17)
    file = io.BytesIO()
    torch.save((first.state_dict(), first.optimizer.state_dict()), file)
    file.seek(0)
    state, optimizer_state = torch.load(file, weights_only=True)
    again = WarmupDecayLR(optimizer(5e-5), warmup_steps=10)
    again.load_state_dict(state)
    again.optimizer.load_state_dict(optimizer_state)
    assert begun + rates(again, 23) == whole


def test_without_the_length_of_an_epoch_nothing_decays():
    assert rates(WarmupDecayLR(optimizer(5e-5), warmup_steps=2), 500)[-1] == [5e-5]


def test_a_high_peak_is_told():
    with pytest.warns(LightningMPWarning, match=r"the learning rate peaks at 0.001, above 0.0005"):
        WarmupDecayLR(torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3), max_lr=None)
    WarmupDecayLR(optimizer(1e-4, 1e-3), max_lr=None)  # the rates of SGD are other units
    WarmupDecayLR(optimizer(1e-3))  # capped


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"warmup_steps": -1}, "`warmup_steps` must be 0 or more, got -1"),
        ({"start_lr": -1.0}, "`start_lr` must be 0 or more, got -1.0"),
        ({"decay_factor": 0.0}, "`decay_factor` must lie in (0, 1], got 0.0"),
        ({"decay_every_n_epochs": 0}, "`decay_every_n_epochs` must be at least 1, got 0"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be at least 1, got 0"),
        ({"max_lr": float("nan")}, "`max_lr` must be positive, got nan"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        WarmupDecayLR(optimizer(1e-4), **arguments)
    assert text in str(error.value)
