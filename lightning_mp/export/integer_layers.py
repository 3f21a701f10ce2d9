"""Linear layers in int8, opt-in: four times smaller, faster on a processor, and dependent on the batch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lightning_mp.errors import LightningMPWarning
from lightning_mp.export.encoded_rows import EncodedRows, session_logits

_ROWS = 64


def quantise(path: Path) -> None:
    """Replace the weights of linear layers of a `model.onnx` by int8, in place; inputs are quantised when it runs.

    Args:
        path: The file.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    result, logger = path.with_name("int8.onnx"), logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it advises to run a preprocessing step that needs fixed shapes
    try:
        quantize_dynamic(str(path), str(result), weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"],
                         use_external_data_format=path.with_name(f"{path.name}.data").is_file())  # fmt: skip
    finally:
        logger.setLevel(level)
    result.replace(path)


def batch_dependence(session: Any, rows: EncodedRows) -> float:
    """Largest change of a row's logit between a batch of one and a batch of many, with a warning where there is one.

    The range of a layer's inputs is taken from the batch, so the other rows of it decide how a row is rounded.

    Args:
        session: Of the file.
        rows: Real rows.
    """
    few = rows[:_ROWS]
    moved = float(np.abs(session_logits(session, few) - session_logits(session, few, batch=1)).max())
    if moved > 0:
        warnings.warn(
            f"int8-dynamic: the logit of a row moves by up to {moved:.2g} with the other rows of its batch"
            "\n\nhint: don't let a server put requests together: `max_batch=1`, or export as fp16-storage",
            LightningMPWarning,
            stacklevel=2,
        )
    return moved
