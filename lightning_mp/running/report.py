"""What stands at the end of a fit: the best checkpoint on the test part, and where everything is."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from lightning_mp.callbacks.onnx_export import OnnxExport


def report(trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule) -> None:
    """Test the best checkpoint and print its metrics, where it is, and how to serve the bundle.

    Args:
        trainer: After its fit.
        model: What was trained.
        datamodule: What it was trained on.
    """
    best = getattr(trainer.checkpoint_callback, "best_model_path", "") or None
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it elsewhere
    bundles = [callback.bundle for callback in callbacks if isinstance(callback, OnnxExport) and callback.bundle]
    trainer.test(model, datamodule=datamodule, ckpt_path=best, verbose=False)
    lines = [f"checkpoint: {_shown(best)}" if best else "checkpoint: none was kept"]
    for bundle in bundles:
        lines += [f"bundle:     {_shown(bundle.path)}", f"serve it:   lightning-mp serve {_shown(bundle.path)}"]
    print("\n".join(lines))  # noqa: T201 (the answer of the command)


def _shown(path: str | Path) -> str:
    """Relative to the working directory where it lies under it."""
    absolute, here = Path(path).resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
