"""PrecisionReport: what a run did to its numbers, as one page and as JSON, with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.artifacts import replacing
from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.precision_report_exception import exception_facts
from lightning_mp.callbacks.precision_report_facts import evaluated, gathered
from lightning_mp.callbacks.precision_report_findings import findings
from lightning_mp.callbacks.precision_report_page import report_page
from lightning_mp.callbacks.precision_report_record import RunRecord
from lightning_mp.callbacks.precision_report_recorder import RunRecorder
from lightning_mp.errors import LightningMPError, LightningMPWarning

_EVALUATIONS = ("validate", "test")


class PrecisionReport(Callback):
    """Write one HTML page and its JSON at the end of a fit, and where it breaks off: open it after a run.

    The page shows findings in order of harm, each with its cause and one cure; the loss scale with its skipped steps,
    the learning rate, the loss; what gradients lost, layer by layer; the layers in float32, and why; clipping, memory;
    the audit's verdict on the data and the parity of the export, where there are such. It fetches nothing and needs no
    JavaScript. All of it stands in the JSON, which is the truth.

    What other callbacks of the Trainer know is read from them. Where there is no `LossScaleMonitor` or
    `GradientUnderflowMonitor` it keeps a light record of its own: skipped steps each step (layers are looked for once
    one was skipped), and what the backward pass loses in the first steps and every 1000. The weights are the same with
    and without it; the device is read on the Trainer's logging steps, after a skip, and for the first eight batches,
    whose columns are compared with the label. Batches are held until the loss is read again, 64 MiB of them at most: a
    loss that is no number is traced to its batch. The record goes through checkpoints: the page of a resumed run shows
    all of it. A `validate` or `test` after the fit adds its metrics; without a fit it writes a page of its own, beside.

    Args:
        dirpath: Folder of `precision_report.html` and `precision_report.json`. Each is replaced whole, by the first
            process alone. A report that cannot be written is a warning, and never stands in the way of the run's end.

    Attributes:
        path: The page that was written last; `None` before.
        findings: What it found, the most harmful first: mappings with `code`, `name`, `severity`, `problem`, `cure`.

    Logs:
        `loss_scale`: the scale, as `scale` in the progress bar too; as all of these, only where no monitor logs it, and
            on the Trainer's logging steps.
        `loss_scale/skipped_steps`: optimizer steps skipped since the run began, as `skipped` in the progress bar too.
        `underflow/lost_norm`: as `GradientUnderflowMonitor` has it, as the four below.
        `underflow/lost_norm/<layer>`: the same of one layer, for the five worst.
        `underflow/flushed_fraction`: share of the gradients' values that became zero, in [0, 1].
        `underflow/subnormal_fraction`: share of the sampled values that lost bits, in [0, 1].
        `underflow/headroom_bits`: doublings of the loss scale until the largest gradient overflows.

    Example:
        >>> report = PrecisionReport("runs/report")
        >>> trainer = pl.Trainer(callbacks=[report], logger=False, enable_checkpointing=False)
    """

    def __init__(self, dirpath: str | Path) -> None:
        self.dirpath = Path(dirpath)
        self._state_key = self._generate_state_key(dirpath=str(dirpath))
        self.path: Path | None = None
        self.findings: list[dict[str, Any]] = []
        self._record = RunRecord()
        self._recorder: RunRecorder | None = None
        self._facts: dict[str, Any] = {}
        self._failure: dict[str, Any] | None = None
        self._stage = "fit"

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._stage = str(getattr(stage, "value", stage))
        if stage == "fit":  # before the state of a checkpoint is loaded
            self._record, self._facts, self.path, self.findings = RunRecord(), {}, None, []
            self._failure = None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()
        self._recorder = RunRecorder(self._record, trainer, pl_module)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._recorder is not None:
            self._recorder.start_batch(pl_module, batch)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._recorder is not None:
            self._recorder.before_backward(pl_module, loss)

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None:
            self._recorder.after_backward(pl_module)

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if self._recorder is not None:
            self._recorder.before_step(pl_module, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._recorder is not None:
            self._recorder.end_batch(pl_module, outputs, batch, batch_idx)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None and not trainer.sanity_checking:
            self._recorder.see_metrics()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._recorder is not None:
            self._recorder.finish(pl_module)
            self._recorder = None

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # After `on_fit_end` of every callback, so that an export has been made wherever it stands in the list.
        self._release()
        if stage == "fit":
            self._facts = gathered(self._record, trainer, pl_module) if trainer.is_global_zero else {}
            self._try_to_write(trainer, "precision_report", failed=None)
        elif stage in _EVALUATIONS:
            self._record.evaluations[self._stage] = evaluated(trainer)
            alone = self._record.began is None
            if alone and trainer.is_global_zero:
                self._facts = gathered(self._record, trainer, pl_module)
            self._try_to_write(trainer, f"precision_report_{self._stage}" if alone else "precision_report", failed=None)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        try:
            if self._recorder is not None:
                self._recorder.finish()
            self._recorder = None
            if trainer.state.fn == "fit" and trainer.is_global_zero:
                self._facts = gathered(self._record, trainer, pl_module)
                self._failure = exception_facts(exception, trainer, pl_module)
        except Exception as error:  # whatever went wrong with the run may have broken what is read here
            self._facts = self._facts or {"run": {"incomplete": repr(error)}}
        if trainer.state.fn == "fit":
            self._try_to_write(trainer, "precision_report", failed=exception)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._record.to_state()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._stage == "fit":  # a test of the best checkpoint would take the record back to where it was saved
            self._record = RunRecord.from_state(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        state = detached_state(self.__dict__, run=["_recorder"])
        return {**state, "_record": self._record.to_state(), "_facts": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_record": RunRecord.from_state(state["_record"])})

    def _try_to_write(self, trainer: pl.Trainer, name: str, *, failed: BaseException | None) -> None:
        if not trainer.is_global_zero:
            return
        try:
            self._write(name, failed)
        except Exception as error:
            said = error.problem if isinstance(error, LightningMPError) else repr(error)
            text = f"`PrecisionReport` wrote no page: {said}\n\nhint: give a folder that can be written to"
            if failed is None:
                rank_zero_warn(text, category=LightningMPWarning)
            else:
                rank_zero_info(text)  # a warning that is turned into an error would hide the run's own
            return
        worst = self.findings[0] if self.findings else None
        said = f"first finding: {worst['code']} {worst['name']}" if worst else "nothing was found"
        rank_zero_info(f"`PrecisionReport` wrote `{self.path}`; {said}")

    def _write(self, name: str, failed: BaseException | None) -> None:
        facts = {**self._facts, "evaluations": self._record.evaluations}
        if failed is not None:
            facts["exception"] = self._failure or {"type": type(failed).__name__, "text": str(failed)[:2000]}
        self.findings = findings(facts)
        record = {"format": 1, **facts, "findings": self.findings}
        text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False, default=str)
        with replacing(self.dirpath / f"{name}.json") as file:
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")
        with replacing(self.dirpath / f"{name}.html") as file:
            file.write(report_page(json.loads(text)).encode("utf-8", "backslashreplace"))
        self.path = self.dirpath / f"{name}.html"

    def _release(self) -> None:
        if self._recorder is not None:
            self._recorder.finish()
            self._recorder = None
