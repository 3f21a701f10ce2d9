"""Keep the input and output layers, or others, in float32 while the rest trains in mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.example_forward import example_forward
from lightning_mp.errors import ConfigurationError, LightningMPWarning
from lightning_mp.precision.float32_layers import Float32Layers
from lightning_mp.precision.gradient_format import GradientFormat, cast_parameters
from lightning_mp.precision.hookable_modules import scripted_modules
from lightning_mp.precision.layer_reachability import LayerReachability
from lightning_mp.precision.module_names import matching_modules

_FORMATS = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
_BATCHES_TO_VERIFY = 20


class KeepInFP32(Callback):
    """Keep layers in float32, forward and backward, in a run with precision `16-mixed` or `bf16-mixed`.

    Undone at the end of each run, also after an exception: then every module has its own class again. Names in
    `state_dict`, tied weights, copies and pickles are as without it.

    Under `"auto"` the layers are found from one forward pass: those whose inputs depend on no other layer that
    multiplies matrices, and those on whose output none depends. Where the LightningModule has an
    `example_input_array` that pass is made on it before the first batch; else the first training batch is watched,
    run without `torch.compile`, and the layers are kept from the second on. The names found travel in the checkpoint.
    An evaluation without either has none to keep, and says so.

    A compiled module breaks its graph at each such layer, and `fullgraph=True` refuses. In a run without autocast
    (`32-true`) nothing is done. TorchScript cannot be kept: it is left out, with a warning.

    Args:
        modules: `"auto"`, or names of modules as `named_modules` gives them, or patterns such as `"tower.*"`.
        verify: Whether to look, on the first training batches, if the gradients of these layers really were computed
            in float32, and to warn if not.

    Attributes:
        layers: Names of the layers kept, or kept last.
        verified: Whether the gradients were computed in float32, by layer, once they were judged.

    Raises:
        ConfigurationError: `modules` is empty or a name in it matches no module; the precision is `16-true` or
            `bf16-true`, whose weights are short already.

    Example:
        >>> keep = KeepInFP32(modules=["embedding", "head*"])
        >>> trainer = pl.Trainer(callbacks=[keep], logger=False, enable_checkpointing=False)
    """

    def __init__(self, modules: str | list[str] = "auto", *, verify: bool = True) -> None:
        if not modules:
            raise ConfigurationError(
                f"`modules` names no layer, got {modules!r}", "use `auto`, or leave the callback out"
            )
        self.modules = modules
        self.verify = verify
        self._state_key = self._generate_state_key(modules=modules, verify=verify)
        self.layers: tuple[str, ...] = ()
        self.verified: dict[str, bool] = {}
        self._batches_left = 0
        self._told: set[str] = set()
        self._kept: Float32Layers | None = None
        self._check: GradientFormat | None = None
        self._watch: LayerReachability | None = None
        self._autocast_off: torch.autocast | None = None

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.precision in ("16-true", "bf16-true"):
            raise ConfigurationError(
                f"`KeepInFP32` keeps nothing in precision `{trainer.precision}`: the weights themselves are short",
                "use precision `16-mixed` or `bf16-mixed`",
            )
        if stage == "fit":  # before the state of a checkpoint is loaded
            self.layers = ()
            self._told.clear()

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._undo()
        self.verified = {}
        self._batches_left = _BATCHES_TO_VERIFY if self.verify else 0
        self._install(trainer, pl_module)

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

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._watch is not None:
            self._collect(self._watch)
        if self._kept is not None and torch.is_autocast_enabled(loss.device.type):
            # Manual optimization calls backward inside autocast: it would run in float16 whatever the forward did.
            self._autocast_off = torch.autocast(loss.device.type, enabled=False)
            self._autocast_off.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self._check is not None and self._batches_left > 0:
            self._check.attach(self.verified)  # nothing, where all that is still to be judged is frozen
            if self._check.is_attached and self._batches_left == _BATCHES_TO_VERIFY:
                self._report_uses_outside(loss)

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_backward()
        if self._watch is not None:
            self._watch.edges()  # a checkpointed segment ran again in the backward pass: that tells nothing
        elif self._check is not None and self._check.is_attached:
            self._check.detach()
            self._judge(self._check)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._watch is not None:
            self._collect(self._watch)
            self._watch.detach()
            self._watch = None
            # Not before the backward pass is over: a checkpointed segment must run twice in one precision.
            self._keep(trainer, pl_module, self.layers)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._undo()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._undo()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"layers": list(self.layers)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.layers = tuple(state_dict["layers"])

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__, run=["_kept", "_check", "_watch", "_autocast_off"])

    def _install(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._kept is not None:
            return
        if trainer.precision not in _FORMATS:
            self._tell(f"`KeepInFP32` has nothing to do: precision `{trainer.precision}` casts no layer")
        elif self.modules != "auto":
            self._keep(trainer, pl_module, [self.modules] if isinstance(self.modules, str) else self.modules)
        elif self.layers and set(self.layers) <= {name for name, _ in pl_module.named_modules()}:
            self._keep(trainer, pl_module, self.layers)
        elif pl_module.example_input_array is not None:
            self._collect(example_forward(trainer, pl_module))
            self._keep(trainer, pl_module, self.layers)
        elif trainer.state.fn != "fit":
            self._tell("`KeepInFP32` keeps no layer in this evaluation: none was found by a training before")

    def _keep(self, trainer: pl.Trainer, pl_module: pl.LightningModule, patterns: Sequence[str]) -> None:
        found = matching_modules(pl_module, patterns)
        layers = {name: layer for name, layer in found.items() if not isinstance(layer, torch.jit.ScriptModule)}
        wanted = [*found] if self.modules != "auto" else scripted_modules(pl_module, at_least_dims=2)
        if left := ", ".join(f"`{name}`" for name in wanted if name not in layers):
            text = f"`KeepInFP32` cannot keep TorchScript in float32: {left}\n\nhint: script it after the training"
            rank_zero_warn(text, category=LightningMPWarning)
        self._kept = Float32Layers(layers)
        self.layers = tuple(layers)
        if self._batches_left:
            self._check = GradientFormat(layers, _FORMATS[str(trainer.precision)])
        names = ", ".join(f"`{name}`" for name in layers)
        self._tell(f"`KeepInFP32` keeps in float32: {names or 'nothing, for no layer was found'}")

    def _collect(self, watch: LayerReachability) -> None:
        self.layers = tuple(dict.fromkeys((*self.layers, *(name for edge in watch.edges() for name in edge))))

    def _report_uses_outside(self, loss: Tensor) -> None:
        cast = cast_parameters(loss)
        for name, layer in self._kept.layers.items() if self._kept else ():
            for parameter_name, parameter in layer.named_parameters():
                if id(parameter) in cast:
                    rank_zero_warn(
                        f"`{name}.{parameter_name}` is used outside of `{name}` too, and autocast shortens it there: "
                        f"only what runs inside `{name}` is in float32\n\n"
                        "hint: call a module there, such as an `nn.Linear` that shares the weight, and keep that too",
                        category=LightningMPWarning,
                    )

    def _judge(self, check: GradientFormat) -> None:
        self.verified.update(check.verdict())
        self._batches_left = 0 if set(self.verified) >= check.names else self._batches_left - 1
        wrong = [name for name, held in self.verified.items() if not held]
        if wrong:
            self._batches_left = 0
            rank_zero_warn(
                f"the gradients of {', '.join(f'`{name}`' for name in wrong)} came out of a shorter format, though "
                "`KeepInFP32` keeps the layer in float32\n\n"
                "hint: leave what calls it uncompiled, or set `verify=False` if its inputs are whole numbers",
                category=LightningMPWarning,
            )

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            rank_zero_info(text)

    def _end_backward(self) -> None:
        if self._autocast_off is not None:
            self._autocast_off.__exit__(None, None, None)
            self._autocast_off = None

    def _undo(self) -> None:
        self._end_backward()
        if self._watch is not None:
            self._watch.detach()
            self._watch = None
        if self._check is not None:
            self._check.detach()
            self._check = None
        if self._kept is not None:
            self._kept.release()
            self._kept = None
