from __future__ import annotations

import copy
import math

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from lightning_mp import GradientClipping, LossScaleMonitor
from lightning_mp.errors import ConfigurationError

LR = 0.5


class Shop(pl.LightningModule):
    """An embedding, dense or sparse, and a layer kept out of autocast: its float16 run has the float32 gradients."""

    def __init__(self, *, sparse: bool = False, fused: bool = False, manual: bool = False, stock_clip: bool = False):
        super().__init__()
        self.table = nn.Embedding(12, 4, sparse=sparse)
        self.head = nn.Linear(4, 1)
        self.fused, self.stock_clip = fused, stock_clip
        self.automatic_optimization = not manual

    def training_step(self, batch, batch_idx):
        ids = (batch[0][:, :3].abs() * 4).long() % 12
        with torch.autocast("cpu", enabled=False):
            loss = (self.head(self.table(ids).mean(1)).squeeze(1) - batch[1]).square().mean()
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            self.manual_backward(loss)
        if self.stock_clip:
            self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
        optimizer.step()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), LR, fused=self.fused)


def in_float32(module: Shop, loader, *, max_norm: float | None, max_value: float | None) -> dict[str, torch.Tensor]:
    """The weights after a plain loop in float32 with dense gradients and torch's own clipping."""
    net = Shop()
    net.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(net.parameters(), LR)
    for batch in loader:
        optimizer.zero_grad()
        net.training_step(batch, 0).backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        if max_value is not None:
            nn.utils.clip_grad_value_(net.parameters(), max_value)
        optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize("arguments", [{"max_norm": 0.05}, {"max_value": 0.02}], ids=["norm", "value"])
@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "fused"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
def test_it_clips_as_a_float32_run_does(make_trainer, batches, precision, kind, manual, arguments):
    loader = batches(8)
    module = Shop(sparse=kind == "sparse", fused=kind == "fused", manual=manual)
    wanted = in_float32(module, loader, **{"max_norm": None, "max_value": None, **arguments})
    callback = GradientClipping(**arguments)
    settings = {} if precision == "16-mixed" else {"precision": precision}
    trainer = make_trainer(callbacks=[callback], **settings)
    trainer.fit(module, loader)
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weight, wanted[name], rtol=2e-5, atol=2e-6)
    assert callback.steps == 8
    assert callback.clipped_steps > 0
    assert trainer.callback_metrics["gradient_norm/clipped_share"] == callback.clipped_steps / 8


def test_the_stock_call_in_manual_optimization_clips_scaled_gradients(make_trainer, batches):
    loader = batches(8)
    module = Shop(manual=True, stock_clip=True)
    start = copy.deepcopy(module.state_dict())
    wanted = in_float32(module, loader, max_norm=0.05, max_value=None)
    make_trainer().fit(module, loader)
    moved = (module.head.weight - start["head.weight"]).norm()
    assert moved < 0.01 * (wanted["head.weight"] - start["head.weight"]).norm()  # a 1024th of what was asked for


def test_the_stock_setting_refuses_sparse_and_fused(make_trainer, batches):
    with pytest.raises(NotImplementedError, match="Sparse"):
        make_trainer(gradient_clip_val=0.5).fit(Shop(sparse=True), batches(2))
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        make_trainer(gradient_clip_val=0.5).fit(Shop(fused=True), batches(2))


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_an_overflow_is_skipped_and_its_layers_are_still_named(toy, make_trainer, batches, fused):
    callback, monitor = GradientClipping(0.01), LossScaleMonitor()
    module = toy(fused=fused, steep={3})
    trainer = make_trainer(callbacks=[callback, monitor])
    trainer.fit(module, batches(6))
    (event,) = monitor.events
    assert (event.step, event.origin, event.layers[0]) == (3, "backward", "last")
    assert (callback.steps, callback.clipped_steps) == (5, 5)
    assert all(torch.isfinite(weight).all() for weight in module.state_dict().values())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_logged_norm_is_the_true_one(make_trainer, batches, accumulate):
    loader, module = batches(3, rows=8), Shop()
    net = copy.deepcopy(module)
    trainer = make_trainer(callbacks=[GradientClipping(1e6)], accumulate_grad_batches=accumulate, limit_train_batches=3)
    net._trainer = None
    wanted = []
    optimizer = torch.optim.SGD(net.parameters(), LR)
    for number, batch in enumerate(loader):
        if number % accumulate == 0:
            optimizer.zero_grad()
        (net.training_step(batch, 0) / accumulate).backward()
        if number % accumulate == accumulate - 1:
            wanted.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in net.parameters())))
            optimizer.step()
    trainer.fit(module, loader)
    assert trainer.callback_metrics["gradient_norm"].item() == pytest.approx(wanted[-1], rel=1e-4)
    assert trainer.callback_metrics["gradient_norm/clipped_share"] == 0


@pytest.mark.parametrize(("precision", "limit"), [("16-mixed", 0.05), ("bf16-mixed", 0.05), ("32-true", 0.1)])
def test_fp32_threshold_is_halved_in_half_precision(make_trainer, batches, precision, limit):
    loader, module = batches(6), Shop()
    wanted = in_float32(module, loader, max_norm=limit, max_value=None)
    settings = {} if precision == "16-mixed" else {"precision": precision}
    make_trainer(callbacks=[GradientClipping(fp32_threshold=0.1)], **settings).fit(module, loader)
    torch.testing.assert_close(module.state_dict()["head.weight"], wanted["head.weight"], rtol=2e-5, atol=2e-6)


def test_16_true_is_clipped_by_a_norm_in_float32(make_trainer, batches):
    class Steep(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 4)

        def training_step(self, batch, batch_idx):
            return (self.net(batch[0]) * 2000).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1.0)

    module = Steep()
    before = module.net.weight.detach().clone()
    callback = GradientClipping(0.5)
    make_trainer(callbacks=[callback], precision="16-true").fit(module, batches(1))
    assert callback.clipped_steps == 1
    moved = [p.detach().float() for p in module.parameters()]
    assert (moved[0] - before).norm() <= 0.51


def test_two_optimizers_are_clipped_each_on_its_own(toy, make_trainer, batches):
    norms = []

    class Watch(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
            norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))

    callback = GradientClipping(0.01)
    make_trainer(callbacks=[callback, Watch()]).fit(toy(manual=True, optimizers=2), batches(4))
    assert norms == pytest.approx([0.01] * 8, rel=1e-3)
    assert callback.steps == 8


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")  # said once a process, whichever test is first
def test_a_training_step_that_gives_none_is_passed_over(toy, make_trainer, batches):
    callback = GradientClipping(0.01)
    make_trainer(callbacks=[callback]).fit(toy(none={1, 4}), batches(6))
    assert callback.steps == 4


def test_counts_go_on_after_a_resume(toy, make_trainer, batches):
    loader, first = batches(5), GradientClipping(0.01)
    trainer = make_trainer(callbacks=[first])
    trainer.fit(toy(bad={1}), loader)
    trainer.save_checkpoint("run.ckpt")
    again = GradientClipping(0.01)
    make_trainer(callbacks=[again], max_epochs=2).fit(toy(bad={1}), loader, ckpt_path="run.ckpt", weights_only=True)
    assert (first.steps, again.steps, again.clipped_steps) == (4, 8, 8)


def test_more_steps_than_are_counted_at_once(toy, make_trainer, batches):
    callback = GradientClipping(0.01)
    make_trainer(callbacks=[callback], log_every_n_steps=10_000).fit(toy(bad={70}), batches(140))
    assert (callback.steps, callback.clipped_steps) == (139, 139)


def test_clipping_twice_is_refused(toy, make_trainer, batches):
    with pytest.raises(ConfigurationError, match=r"the Trainer has `gradient_clip_val=0.5`"):
        make_trainer(callbacks=[GradientClipping(1.0)], gradient_clip_val=0.5).fit(toy(), batches(2))


def test_a_sharded_strategy_is_refused(toy, batches):
    class FSDPStrategy(pl.strategies.SingleDeviceStrategy):
        """Stands for Lightning's, which needs a GPU to be made; the callback goes by the name."""

    trainer = pl.Trainer(
        strategy=FSDPStrategy(), accelerator="cpu", callbacks=[GradientClipping(1.0)], logger=False, max_epochs=1,
        plugins=[MixedPrecision("16-mixed", "cpu")], enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="sees only a shard of each gradient under `FSDPStrategy`"):
        trainer.fit(toy(), batches(2))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "one of `max_norm`, `max_value` and `fp32_threshold` is needed, got 0 of them"),
        ({"max_norm": 1.0, "fp32_threshold": 1.0}, "got 2 of them"),
        ({"max_norm": 0.0}, "`max_norm` must be positive and finite, got 0.0"),
        ({"max_value": math.nan}, "`max_value` must be positive and finite, got nan"),
        ({"fp32_threshold": math.inf}, "`fp32_threshold` must be positive and finite, got inf"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        GradientClipping(**arguments)
    assert text in str(error.value)
