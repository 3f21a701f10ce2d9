"""Block: some rows of a file, and where each stood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some rows of a file.

    Attributes:
        rows: (N,) data rows of the file, from 0, rejected rows counted.
        lines: (N,) where each stands: the first line of its record, from 1; in a file without lines its row, from 1.
        columns: (N,) arrays by name of the file's column.
        done: Share of the file that has been read, in [0, 1].
    """

    rows: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    columns: dict[str, pa.Array]
    done: float
