"""SafeCheckpointIO: checkpoints that are whole or not there, and that are refused when a bit has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from typing_extensions import override

from lightning_mp.artifacts import replacing
from lightning_mp.zip_digest import DigestWriter, require_unaltered


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints whole or not at all, and refuses those whose bytes were altered since.

    Lightning's own writing goes through a temporary file in the system's folder for them; where that is another file
    system, a kill or a full disk in between destroys the checkpoint that was there. torch writes a checksum beside
    every tensor and never compares it: more than half of all single flipped bits load without a word, with other
    weights. Here the bytes go beside the target, are forced to disk, and take its name in one step; a sha256 is written
    behind them, as the comment of the zip archive that a checkpoint is, and compared before anything is loaded. Files
    stay what they were for stock Lightning and torch, and theirs are checked by torch's own checksums.

    It is used as it is by `ModelCheckpoint`, `last.ckpt` as a link included: `Trainer(plugins=[SafeCheckpointIO()])`.
    A path with a protocol, such as `s3://`, goes Lightning's own way. Only tensors and plain Python are loaded, unless
    the Trainer is told `weights_only=False`.

    Raises:
        ArtifactError: A checkpoint is missing, cut short or altered, or cannot be written; the file is named.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/last.ckpt"
        >>> plugin = SafeCheckpointIO()
        >>> plugin.save_checkpoint({"state_dict": {"w": torch.ones(1000)}}, path)
        >>> with open(path, "r+b") as file:
        ...     _ = file.seek(3000), file.write(b"!")
        >>> plugin.load_checkpoint(path)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lightning_mp.errors.ArtifactError: checkpoint `...last.ckpt` is damaged: its bytes do not have its digest
        <BLANKLINE>
        hint: take another checkpoint of the run, or train again

    Source:
        PyTorch issue 126952: the check is off in its zip reader.
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: What Lightning collected.
            path: The file; one that is there is replaced in one step.
            storage_options: Must be left out, as with Lightning's own.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with replacing(path) as file:
            writer = DigestWriter(file)
            try:
                torch.save(checkpoint, writer)  # type: ignore[arg-type]  # `write` is all that torch asks for
            except RuntimeError as error:
                # Closing its archive, torch complains of bytes that are missing and hides what kept them out.
                if "unexpected pos" in str(error) and error.__context__ is not None:
                    raise error.__context__ from None
                raise
            writer.seal()

    @override
    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint whose bytes are those that were written.

        Args:
            path: The file.
            map_location: As `torch.load` takes it; left out, the processor's memory.
            weights_only: Load tensors and plain Python alone; `None` for true, whatever the path.
        """
        safe = True if weights_only is None else weights_only
        if "://" not in str(path):
            require_unaltered(path)
        loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only=safe)
        return loaded
