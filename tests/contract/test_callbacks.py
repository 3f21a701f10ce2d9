"""What every public callback promises, in both Trainer packages."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import lightning_mp

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
PUBLIC = {name: getattr(lightning_mp, name) for name in lightning_mp.__all__}
CALLBACKS = sorted(name for name, value in PUBLIC.items() if inspect.isclass(value) and issubclass(value, Callback))
# A callback with required arguments has a line here; the second row is an instance that stands beside the first.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "GradientClipping": {"max_norm": 0.5},
    "GradientUnderflowMonitor": {"every_n_steps": 1, "probe_every_n_steps": 1},
    "OnnxExport": {"dirpath": "bundle", "strict": False},
    "PrecisionReport": {"dirpath": "report"},
}
OTHER_ARGUMENTS: dict[str, dict[str, Any]] = {
    "GradientClipping": {"max_value": 0.1},
    "GradientUnderflowMonitor": {"every_n_steps": 2, "top_k": 2},
    "KeepInFP32": {"modules": ["middle"]},
    "LearningRateWarmup": {"start_lr": 1e-4},
    "LossFluctuationMonitor": {"window": 3},
    "LossScaleMonitor": {"patience": 7},
    "OnnxExport": {"dirpath": "other", "strict": False},
    "PrecisionLint": {"ignore": ["MP103"]},
    "PrecisionReport": {"dirpath": "other"},
}
# Operations a step where more than two are the work itself: the norm of all gradients, and its factor on them.
# Of the guard: a copy of the statistics, the largest of them, and its way to the host.
OPERATIONS = {"GradientClipping": 11, "NormGuard": 3}
# Those that say something at a validation only.
AT_VALIDATION = {"LossFluctuationMonitor"}
# Measured often above; here as it comes, so that the steps counted are those between two measurements.
SELDOM: dict[str, dict[str, Any]] = {"GradientUnderflowMonitor": {}}
# Those that change nothing in the run: the weights are the same with and without them.
READERS = [name for name in CALLBACKS if name.endswith(("Monitor", "Report", "Export", "Lint"))]
# What they log comes from a run with a feature store; their own tests compare it with the docstring.
LOG_IN_A_RECOMMENDER = {"OnnxExport"}

_OURS = "lightning_mp.errors.LightningMPWarning"
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:the training loader of .* has no `state_dict`:{_OURS}"),
    pytest.mark.filterwarnings(f"ignore:`PrecisionLint` found 1 thing:{_OURS}"),
    pytest.mark.filterwarnings(f"ignore:`val_loss` .* against a running median:{_OURS}"),
    pytest.mark.filterwarnings(f"ignore:.*`OnnxExport` wrote no bundle.*:{_OURS}"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.` is deprecated.*"),
]


@pytest.fixture(params=PACKAGES)
def library(request: pytest.FixtureRequest) -> Any:
    """Each Trainer package in turn."""
    return import_module(request.param)


def build(name: str, *, other: bool = False) -> Any:
    return PUBLIC[name](**(OTHER_ARGUMENTS if other else ARGUMENTS).get(name, {}))


def toy(
    library: Any, *, fused: bool = False, bad: set[int] | None = None, breaks: str = "", validates: bool = False
) -> Any:
    """A module of `library` with dropout and normalisation, whose batches `bad` overflow."""
    overflows = bad or set()

    class Toy(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.first, self.middle, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
            self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.2)

        def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            h = self.first(torch.cat([self.table(ids), x], 1))
            return self.last(self.dropout(self.middle(self.norm(h.float()).relu()).relu())).squeeze(1)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if breaks == "training_step" and batch_idx == 1:
                raise KeyError("planted")
            ids, x, y = batch
            return (self(ids, x).float() - y).square().mean() * (1e12 if batch_idx in overflows else 1.0)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if breaks == "on_before_optimizer_step":
                raise KeyError("planted")

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-2, fused=fused)

    class Validated(Toy):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, -1))

    return Validated() if validates else Toy()


def data(batches: int) -> DataLoader[Any]:
    rows = 8 * batches
    return DataLoader(TensorDataset(torch.randint(9, (rows,)), torch.randn(rows, 4), torch.randn(rows)), batch_size=8)


def trainer(library: Any, *callbacks: Any, epochs: int = 1, log_every: int = 1, logger: Any = False) -> Any:
    plugin = import_module(f"{library.__name__}.plugins.precision").MixedPrecision(
        "16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0)
    )
    return library.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=log_every,
        plugins=[plugin],
        callbacks=list(callbacks),
    )


def left_behind(module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Every hook and class that a callback could have left on what it was given."""
    found: dict[str, Any] = {}
    for name, inner in module.named_modules():
        found[f"{name} class"] = type(inner) if name else None
        found[f"{name} attributes"] = sorted(set(vars(inner)) - {"_compiler_ctx"})
        for attribute, value in vars(inner).items():
            if attribute.endswith("_hooks"):
                found[f"{name}.{attribute}"] = len(value)
    for name, parameter in module.named_parameters():
        found[f"{name} hooks"] = len(parameter._backward_hooks or {}) + len(
            getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        )
    for number, optimizer in enumerate(optimizers):
        for attribute, value in vars(optimizer).items():
            if attribute.endswith("_hooks"):
                found[f"optimizer {number}.{attribute}"] = len(value)
    found["autocast"] = torch.is_autocast_enabled("cpu")
    found["gradients"] = torch.is_grad_enabled()
    found["compiler stance"] = torch._dynamo.eval_frame._stance.stance
    return found


def test_callbacks_are_found():
    assert {"KeepInFP32", "LossScaleMonitor", "OnnxExport"} <= set(CALLBACKS)
    assert set(ARGUMENTS) | set(OTHER_ARGUMENTS) <= set(CALLBACKS)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("name", CALLBACKS)
def test_it_fits_twice_and_leaves_no_hook_behind(library, name, fused):
    callback, module = build(name), toy(library, fused=fused, bad={1})
    plain, without = toy(library, fused=fused, bad={1}), trainer(library)
    without.fit(plain, data(3))
    for _ in range(2):
        run = trainer(library, callback)
        run.fit(module, data(3))
        assert left_behind(module, run.optimizers) == left_behind(plain, without.optimizers)


@pytest.mark.parametrize("breaks", ["training_step", "on_before_optimizer_step"])
@pytest.mark.parametrize("name", CALLBACKS)
def test_it_leaves_no_hook_behind_after_an_exception(library, name, breaks):
    left = []
    for callbacks in ([], [build(name)]):
        module, run = toy(library, bad={0}, breaks=breaks), trainer(library, *callbacks)
        with pytest.raises(KeyError, match="planted"):
            run.fit(module, data(3))
        left.append(left_behind(module, run.optimizers))
    assert left[0] == left[1]


@pytest.mark.parametrize("name", CALLBACKS)
def test_it_pickles_and_copies_before_during_and_after_a_fit(library, name):
    callback, sizes = build(name), []

    def take() -> None:
        sizes.append(len(pickle.dumps(callback)))
        for other in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
            assert type(other) is type(callback)
            assert other.state_key == callback.state_key
            assert other.state_dict() == callback.state_dict()

    class Take(library.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            take()

    take()
    trainer(library, callback, Take()).fit(toy(library, bad={1}), data(3))
    take()
    assert max(sizes) < 5_000  # neither the module nor the Trainer came along
    trainer(library, copy.deepcopy(callback)).fit(toy(library), data(2))


@pytest.mark.parametrize("name", CALLBACKS)
def test_two_instances_stand_in_one_trainer(library, name):
    first, second = build(name), build(name, other=True)
    if type(first).state_dict is not Callback.state_dict:
        assert first.state_key != second.state_key
    trainer(library, first, second).fit(toy(library, bad={1}), data(3))


@pytest.mark.parametrize("name", CALLBACKS)
def test_its_state_goes_through_a_checkpoint_read_with_weights_only(library, name):
    callback, batches = build(name), data(4)
    run = trainer(library, callback)
    run.fit(toy(library, bad={1}), batches)
    run.save_checkpoint("run.ckpt")
    saved = torch.load("run.ckpt", weights_only=True)["callbacks"].get(callback.state_key)
    assert saved == (callback.state_dict() or None)
    loaded: list[Any] = []
    again = build(name)

    class Look(library.Callback):
        def on_train_start(self, *_: Any) -> None:
            loaded.append(copy.deepcopy(again.state_dict()))

    trainer(library, Look(), again, epochs=2).fit(toy(library), batches, ckpt_path="run.ckpt", weights_only=True)
    assert loaded == [callback.state_dict()]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("name", READERS)
def test_a_monitor_leaves_weights_and_random_numbers_bit_identical(library, name, fused):
    batches, results = data(8), []
    start = toy(library, fused=fused, bad={1, 2, 5})
    weights = copy.deepcopy(start.state_dict())
    for callbacks in ([], [build(name)]):
        module = toy(library, fused=fused, bad={1, 2, 5})
        module.load_state_dict(weights)
        torch.manual_seed(7)
        trainer(library, *callbacks).fit(module, batches)
        results.append(({k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()))
    (without, random_without), (with_, random_with) = results
    assert all(torch.equal(without[key], with_[key]) for key in without)
    assert torch.equal(random_without, random_with)


def documented_keys(kind: type) -> set[str]:
    """Keys of the `Logs` section; `<...>` in a key stands for a name that the run gives."""
    section = re.search(r"^Logs:\n((?:[ ]{4}.*\n?|\n)*)", inspect.cleandoc(kind.__doc__ or ""), re.MULTILINE)
    return set(re.findall(r"^ {4}`([^`]+)`:", section[1], re.MULTILINE)) if section else set()


@pytest.mark.parametrize("name", [name for name in CALLBACKS if name not in LOG_IN_A_RECOMMENDER])
def test_logged_keys_are_the_documented_ones(library, name):
    loggers = import_module(f"{library.__name__}.loggers")
    run = trainer(library, build(name), logger=loggers.CSVLogger("."), epochs=2)
    validates = name in AT_VALIDATION
    run.fit(toy(library, bad={1}, validates=validates), data(3), data(1) if validates else None)
    logged = (
        {key for row in run.logger.experiment.metrics for key in row}
        if hasattr(run.logger.experiment, "metrics")
        else set()
    )
    logged |= set(run.callback_metrics)
    patterns = {re.sub(r"\\?<[^>]*>", "[^/]+", re.escape(key)) for key in documented_keys(PUBLIC[name])}
    wanted = {key for key in logged if not key.startswith(("epoch", "step", "val_loss"))}
    assert all(any(re.fullmatch(pattern, key) for pattern in patterns) for key in wanted)
    assert all(any(re.fullmatch(pattern, key) for key in wanted) for pattern in patterns)


class Operations(TorchDispatchMode):
    """Counts every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts what waits for the device: on the CPU `tolist` and the like are no operation."""

    names = frozenset({"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__"})

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(func, "__name__", "") in self.names
        return func(*args, **(kwargs or {}))


def cost(library: Any, callbacks: list[Any], batches: int, *, fused: bool) -> tuple[int, int]:
    """(reads from the device, operations) of a fit that never logs."""
    run = trainer(library, *callbacks, log_every=10_000)
    module, loader = toy(library, fused=fused), data(batches)
    with Operations() as operations, Reads() as reads:
        run.fit(module, loader)
    return reads.count + operations.counts["aten._local_scalar_dense"], operations.counts.total()


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("name", CALLBACKS)
def test_off_logging_steps_it_reads_nothing_and_adds_few_operations_a_step(library, name, fused):
    short, long = 25, 35  # past what is done once, at the start of a run
    extra: dict[bool, tuple[int, int]] = {}
    for with_it in (False, True):
        (reads, operations), (more_reads, more_operations) = (
            cost(
                library,
                [PUBLIC[name](**SELDOM.get(name, ARGUMENTS.get(name, {})))] if with_it else [],
                batches,
                fused=fused,
            )
            for batches in (short, long)
        )
        extra[with_it] = (more_reads - reads, more_operations - operations)
    assert extra[True][0] == extra[False][0]
    assert extra[True][1] - extra[False][1] <= OPERATIONS.get(name, 2) * (long - short)


@pytest.fixture(autouse=True)
def _no_trainer_package_is_patched() -> Iterator[None]:
    """A callback that replaced something of either package would be seen here."""
    watched = {
        (package, kind): dict(vars(getattr(sys.modules[package], kind)))
        for package in PACKAGES
        if package in sys.modules
        for kind in ("Trainer", "LightningModule", "Callback")
    }
    yield
    for (package, kind), before in watched.items():
        assert dict(vars(getattr(sys.modules[package], kind))) == before
