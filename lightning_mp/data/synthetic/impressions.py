"""Impressions as they are drawn, before they are written down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Impressions:
    """Columns of N impressions, in no order of time: who saw what when, and what came of it."""

    user: Ints
    item: Ints
    time: Ints
    session: Ints
    position: Ints
    device: Ints
    promotion: Floats
    click: Bools
    cart: Bools
    order: Bools
    dwell: Floats
    chance: Floats
