"""Time spent inside our callbacks, over the time of a training step, with all of them in one Trainer.

    python tests/benchmarks/callbacks_overhead.py --json --check
    python tests/benchmarks/callbacks_overhead.py --quick         # a fifth of the steps

Counted is everything that a callback's hooks run, and every hook that it puts on a tensor, a module, a graph or an
optimizer; the second backward pass of a probe stands in it. In CPU seconds of the one thread that trains, so that
neighbours don't count, from step 51 on, over a whole period of every monitor (500 steps). The scaler is the real one,
the arithmetic bfloat16, which this kind of CPU does as fast as others do float16; emulated float16 would make every
overhead look small. `GradientClipping` stands in place of Lightning's own clipping, whose time in a Trainer of its own,
on the same module, is taken off. So does `Naive` run: four statistics of each gradient, each step, read and logged.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from machine import machine
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import lightning_mp
from lightning_mp.precision.two_scale_probe import TwoScaleProbe

FIRST = 50
EACH, TOGETHER = 0.5, 1.5
HOOKS = [name for name in dir(pl.Callback) if name.startswith("on_")]
# Built where they exist; `GradientClipping` does work that a run without it leaves to Lightning, so both are shown.
WANTED: dict[str, dict[str, Any]] = {
    "LossScaleMonitor": {},
    "GradientUnderflowMonitor": {},
    "KeepInFP32": {},
    "LearningRateWarmup": {},
    "NonFiniteMonitor": {},
    "NormGuard": {},
    "LossFluctuationMonitor": {},
    "PrecisionLint": {},
    "ResumableRandomState": {},
    "GradientClipping": {"max_norm": 1.0},
    "PrecisionReport": {"dirpath": "report"},  # of the folder that a run has for itself
}


class Clock:
    """Seconds by owner; what runs inside another's time is that one's own.

    Reading the clock takes most of a microsecond, some forty times a step. What it takes around nothing is taken off.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.owner: str | None = None
        self.own = 0.0
        nothing = self.timed(lambda: None, "nothing")
        for _ in range(2000):
            nothing()
        self.own = self.seconds.pop("nothing") / 2000

    def timed(self, function: Callable[..., Any], owner: str | None = None) -> Callable[..., Any]:
        name = owner or self.owner
        if name is None:
            return function

        @functools.wraps(function)  # with its attributes: callbacks that share hooks know them by these
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.owner is not None:
                return function(*args, **kwargs)
            self.owner, begin = name, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.thread_time() - begin - self.own
                self.owner = None

        return call

    @contextmanager
    def watching(self, callbacks: list[pl.Callback]) -> Iterator[None]:
        """Time the hooks of callbacks, and what they register while they run."""
        for callback in callbacks:
            for hook in HOOKS:
                if getattr(type(callback), hook) is not getattr(pl.Callback, hook):
                    setattr(callback, hook, self.timed(getattr(callback, hook), type(callback).__name__))
        kinds = {type(callback): type(callback).state_key for callback in callbacks}  # Lightning asks at every hook
        for kind, key in kinds.items():
            kind.state_key = property(self.timed(key.fget, kind.__name__))
        places = [
            (torch.Tensor, "register_hook"), (torch.Tensor, "register_post_accumulate_grad_hook"),
            (nn.Module, "register_forward_hook"), (nn.Module, "register_forward_pre_hook"),
            (torch.optim.Optimizer, "register_step_pre_hook"), (torch.optim.Optimizer, "register_step_post_hook"),
        ]  # fmt: skip
        originals = [getattr(kind, name) for kind, name in places]
        for (kind, name), original in zip(places, originals, strict=True):

            def register(target: Any, hook: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                return _original(target, self.timed(hook), *args, **kwargs)

            setattr(kind, name, register)
        measure = TwoScaleProbe._measure
        TwoScaleProbe._measure = self.timed(measure, "GradientUnderflowMonitor")
        try:
            yield
        finally:
            for kind, key in kinds.items():
                kind.state_key = key
            TwoScaleProbe._measure = measure
            for (kind, name), original in zip(places, originals, strict=True):
                setattr(kind, name, original)


class Steps(pl.Callback):
    """Reads the clocks at the first step that counts and at the last; stands last in the Trainer."""

    def __init__(self, clock: Clock, first: int) -> None:
        self.clock, self.first = clock, first

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.first:
            self.clock.seconds.clear()
            self.begin = time.thread_time(), time.perf_counter()
        self.end = time.thread_time(), time.perf_counter()
        self.steps = trainer.global_step - self.first


class Naive(pl.Callback):
    """What one finds in many a repository: statistics of each gradient, read and logged one by one."""

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                pl_module.log(f"norm/{name}", gradient.norm().item())
                pl_module.log(f"largest/{name}", gradient.abs().max().item())
                pl_module.log(f"mean/{name}", gradient.mean().item())
                pl_module.log(f"zeros/{name}", (gradient == 0).float().mean().item())


class Recommender(pl.LightningModule):
    """DLRM-like: 1.8 M parameters, 2048 rows a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(10_000, 16) for _ in range(8)])
        self.bottom = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16))
        self.top = nn.Sequential(
            nn.Linear(144, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids, dense, label = batch
        vectors = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        logits = self.top(torch.cat([*vectors, self.bottom(dense).float()], 1))
        return binary_cross_entropy_with_logits(logits.float().squeeze(1), label)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-3)

    @staticmethod
    def loader(steps: int) -> DataLoader[Any]:
        rows = 2048
        data = TensorDataset(torch.randint(10_000, (rows, 8)), torch.randn(rows, 16), (torch.rand(rows) < 0.05).float())
        return Again(data, rows, steps)


class Deep(pl.LightningModule):
    """102 linear layers with normalisations between, 512 rows a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(101)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(128) for _ in range(5)])
        self.last = nn.Linear(128, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        for number, layer in enumerate(self.layers):
            x = x + 0.1 * layer(x).relu()
            if number % 20 == 19:
                x = self.norms[number // 20](x.float())
        return mse_loss(self.last(x).float().squeeze(1), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-4)

    @staticmethod
    def loader(steps: int) -> DataLoader[Any]:
        return Again(TensorDataset(torch.randn(512, 128), torch.randn(512)), 512, steps)


class Again:
    """One batch, as often as asked for: the data costs nothing."""

    def __init__(self, data: TensorDataset, rows: int, steps: int) -> None:
        self.batch, self.steps = data[:rows], steps

    def __iter__(self) -> Iterator[Any]:
        return iter([self.batch] * self.steps)

    def __len__(self) -> int:
        return self.steps


def run(
    kind: type[Any], callbacks: list[pl.Callback], steps: int, clip: float | None = None
) -> tuple[Counter[str], Steps]:
    """Seconds by callback, and the steps they were counted in."""
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    plugin.precision = "bf16-mixed"  # computes in bfloat16, keeps the scaler
    clock = Clock()
    counter = Steps(clock, FIRST)
    plugin.clip_gradients = clock.timed(plugin.clip_gradients, "clipping by Lightning")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), clock.watching(callbacks):
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, logger=CSVLogger(folder), enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, plugins=[plugin],
            callbacks=[*callbacks, counter], gradient_clip_val=clip,
        )  # fmt: skip
        torch.manual_seed(0)
        trainer.fit(kind(), kind.loader(FIRST + steps))
    return clock.seconds, counter


def main() -> int:
    """Print the table; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON as the last line")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    steps = 100 if arguments.quick else 500
    wanted = {name: settings for name, settings in WANTED.items() if name in lightning_mp.__all__}
    rows: list[dict[str, Any]] = []
    for kind in (Recommender, Deep):
        ours = [getattr(lightning_mp, name)(**settings) for name, settings in wanted.items()]
        measured = {
            "ours": run(kind, ours, steps), "naive": run(kind, [Naive()], 20), "lightning": run(kind, [], 40, clip=1.0)
        }  # fmt: skip
        for which, (seconds, counter) in measured.items():
            whole, wall = (end - begin for begin, end in zip(counter.begin, counter.end, strict=True))
            rest = whole - sum(seconds.values())
            names = {"ours": list(wanted), "naive": ["Naive"], "lightning": ["clipping by Lightning"]}[which]
            rows += [
                {
                    "module": kind.__name__, "callback": name, "percent of the step": 100 * seconds[name] / rest,
                    "microseconds a step": 1e6 * seconds[name] / counter.steps,
                    "step, ms of CPU": 1e3 * rest / counter.steps, "step, ms of wall": 1e3 * wall / counter.steps,
                }
                for name in names
            ]  # fmt: skip
    print(f"{'module':14}{'callback':28}{'% of the step':>14}{'us a step':>12}{'step, ms CPU':>14}")
    for row in rows:
        print(f"{row['module']:14}{row['callback']:28}{row['percent of the step']:14.3f}"
              f"{row['microseconds a step']:12.1f}{row['step, ms of CPU']:14.2f}")  # fmt: skip
    checks = []
    for module in ("Recommender", "Deep"):
        own = {row["callback"]: row["percent of the step"] for row in rows if row["module"] == module}
        naive, lightning = own.pop("Naive"), own.pop("clipping by Lightning")
        own["GradientClipping"] = max(0.0, own["GradientClipping"] - lightning)
        for name, value in own.items():
            checks.append({"name": f"{module}: {name}, %", "value": value, "goal": EACH, "ok": value <= EACH})
        together = sum(own.values())
        checks.append(
            {"name": f"{module}: together, %", "value": together, "goal": TOGETHER, "ok": together <= TOGETHER}
        )
        print(f"{module}: together {together:.2f} %, naive monitoring {naive:.0f} %")
    for check in checks:
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {check['value']:.3f}, at most {check['goal']:g}")
    if arguments.json:
        print(json.dumps({"benchmark": "callbacks_overhead", "machine": machine(), "checks": checks, "rows": rows}))
    return int(arguments.check and not all(check["ok"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
