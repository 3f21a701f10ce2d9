"""Keep the input and output layers, or others, in float32 while the rest trains in mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.example_forward import example_forward
from lightning_mp.callbacks.keep_in_fp32_layers import KeptLayers
from lightning_mp.callbacks.keep_in_fp32_ranges import RangeWatch
from lightning_mp.callbacks.log_metrics import log_metrics
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import ConfigurationError
from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.layer_reachability import LayerReachability
from lightning_mp.precision.module_names import modules_by_name

_FORMATS = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class KeepInFP32(Callback):
    """Keep layers in float32, forward and backward, in a run with precision `16-mixed` or `bf16-mixed`.

    Undone at the end of each run, also after an exception: then every module has its own class again. Names in
    `state_dict`, tied weights, copies and pickles are as without it.

    Under `"auto"` the layers are found from one forward pass: those whose inputs depend on no other layer that
    multiplies matrices, and those on whose output none depends. Where the LightningModule has an
    `example_input_array` that pass is made on it before the first batch; else the first training batch is watched,
    run without `torch.compile`, and the layers are kept from the second on.

    In `16-mixed` it then takes in each layer whose numbers come near float16's end, and says which. They are measured
    in the first batches, in every 200th, and in ten after a step that was skipped for an overflow of the forward pass.
    Such a batch is read from the device once and runs without `torch.compile`. Where arithmetic between layers makes
    the numbers large, the layer before it is taken in. What was found travels in the checkpoint. An evaluation without
    it and without an example has none to keep, and says so.

    A compiled module breaks its graph at each such layer, and `fullgraph=True` refuses. Without autocast (`32-true`)
    nothing is done. TorchScript, and under `"auto"` a layer that fails in float32, is left out with a warning.

    Args:
        modules: `"auto"`, or names of modules as `named_modules` gives them, or patterns such as `"tower.*"`.
        verify: Whether to look in the first batches if the gradients really are computed in float32, and warn if not.
        largest_activation: Under `"auto"`, the largest magnitude that a layer's input or output may have in float16; by
            default an eighth of float16's largest. None leaves it at the input and output layers.

    Attributes:
        layers: Names of the layers kept, or kept last.
        near_overflow: The magnitude for which some of them were taken in, by name; infinite where a value overflowed.
        verified: Whether the gradients were computed in float32, by layer, once they were judged.

    Logs:
        `float32_layers`: number of layers kept, on the Trainer's first logging step and after each change.

    Raises:
        ConfigurationError: `modules` is empty or a name in it matches no module; `largest_activation` is not positive;
            the precision is `16-true` or `bf16-true`, whose weights are short already.

    Example:
        >>> keep = KeepInFP32(modules=["embedding", "head*"])
        >>> trainer = pl.Trainer(callbacks=[keep], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        modules: str | list[str] = "auto",
        *,
        verify: bool = True,
        largest_activation: float | None = FLOAT16.largest / 8,
    ) -> None:
        if not modules:
            raise ConfigurationError(f"`modules` names no layer, got {modules!r}", "use `auto`, or leave it out")
        if largest_activation is not None and not largest_activation > 0:
            problem = f"`largest_activation` must be positive, got {largest_activation!r}"
            raise ConfigurationError(problem, "leave it out for 8188")
        self.modules, self.verify, self.largest_activation = modules, verify, largest_activation
        self._state_key = self._generate_state_key(
            modules=modules, verify=verify, largest_activation=largest_activation
        )
        self.layers: tuple[str, ...] = ()
        self.near_overflow: dict[str, float] = {}
        self.verified: dict[str, bool] = {}
        self._measured: dict[str, int] = {}
        self._logged = 0
        self._told: set[str] = set()
        self._kept: KeptLayers | None = None
        self._watch: LayerReachability | None = None
        self._ranges: RangeWatch | None = None

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.precision in ("16-true", "bf16-true"):
            problem = f"`KeepInFP32` keeps nothing in precision `{trainer.precision}`: the weights themselves are short"
            raise ConfigurationError(problem, "use precision `16-mixed` or `bf16-mixed`")
        if stage == "fit":  # before the state of a checkpoint is loaded
            self.layers, self.near_overflow, self._measured = (), {}, {}
            self._told.clear()

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._undo()
        self.verified, self._logged = {}, -1
        self._install(trainer, pl_module)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.modules == "auto" and self.largest_activation is not None and trainer.precision == "16-mixed":
            self._ranges = RangeWatch(self.largest_activation, self._measured)
            self._ranges.start(trainer)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._install(trainer, pl_module)

    @override
    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._install(trainer, pl_module)

    @override
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._install(trainer, pl_module)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._kept is None and trainer.precision in _FORMATS and self._watch is None:
            self._watch = LayerReachability()
            self._watch.attach(pl_module)
        if self._ranges is not None:
            self._ranges.start_batch(pl_module, batch, None if self._kept is None else self._kept.settled)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._watch is not None:
            self._collect(self._watch)
        if self._ranges is not None:
            self._ranges.see_loss(loss)
        if self._kept is not None:
            self._kept.before_backward(loss)

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._kept is not None:
            self._kept.after_backward()
        if self._ranges is not None:
            self._ranges.after_backward()
        if self._watch is not None:
            self._watch.edges()  # a checkpointed segment ran again in the backward pass: that tells nothing

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if self._ranges is not None:
            self._ranges.expect_step(pl_module, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Not before the backward pass is over: a checkpointed segment must run twice in one precision.
        if self._watch is not None:
            self._collect(self._watch)
            self._watch.detach()
            self._watch = None
            self._keep(trainer, pl_module, self.layers)
        if self._ranges is not None:
            near = self._ranges.end_batch(trainer, pl_module, () if self._kept is None else self._kept.settled)
            if near is not None and self._kept is not None:
                self.near_overflow.update(self._kept.take_in(pl_module, near))
        if self._kept is not None:
            self.layers = self._kept.names
        if len(self.layers) != self._logged and is_logging_step(trainer):
            self._logged = len(self.layers)
            log_metrics(trainer, {"float32_layers": float(self._logged)})

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._undo()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._undo()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"layers": [*self.layers], "near_overflow": {**self.near_overflow}, "measured": {**self._measured}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.layers = tuple(state_dict["layers"])
        self.near_overflow = dict(state_dict.get("near_overflow", {}))
        self._measured = dict(state_dict.get("measured", {}))

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__, run=["_kept", "_watch", "_ranges"])

    def _install(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._kept is not None:
            return
        if trainer.precision not in _FORMATS:
            self._tell(f"`KeepInFP32` has nothing to do: precision `{trainer.precision}` casts no layer")
        elif self.modules != "auto":
            self._keep(trainer, pl_module, [self.modules] if isinstance(self.modules, str) else self.modules)
        elif self.layers and modules_by_name(pl_module).keys() >= set(self.layers):
            self._keep(trainer, pl_module, self.layers)
        elif pl_module.example_input_array is not None:
            self._collect(example_forward(trainer, pl_module))
            self._keep(trainer, pl_module, self.layers)
        elif trainer.state.fn != "fit":
            self._tell("`KeepInFP32` keeps no layer in this evaluation: none was found by a training before")

    def _keep(self, trainer: pl.Trainer, pl_module: pl.LightningModule, patterns: Sequence[str]) -> None:
        verified = self.verified if self.verify and trainer.state.fn == "fit" else None
        dtype, named = _FORMATS[str(trainer.precision)], self.modules != "auto"
        self._kept = KeptLayers(pl_module, patterns, named=named, dtype=dtype, verified=verified)
        self.layers = self._kept.names
        names = ", ".join(f"`{name}`" for name in self.layers)
        self._tell(f"`KeepInFP32` keeps in float32: {names or 'nothing, for no layer was found'}")

    def _collect(self, watch: LayerReachability) -> None:
        self.layers = tuple(dict.fromkeys((*self.layers, *(name for edge in watch.edges() for name in edge))))

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            rank_zero_info(text)

    def _undo(self) -> None:
        if self._watch is not None:
            self._watch.detach()
        for part in (self._ranges, self._kept):
            if part is not None:
                part.release()
        self._watch = self._ranges = self._kept = None
