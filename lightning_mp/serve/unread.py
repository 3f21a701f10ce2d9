"""What of a request the model could not read: inputs that were missing, and values that it does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.manifest import RawInput
from lightning_mp.serve.columns import missing_value


def missing_names(inputs: Sequence[RawInput], columns: Mapping[str, Sequence[Any]], rows: int) -> list[list[str]]:
    """Names of the inputs that each row lacks; those that the graph derives from others are passed over.

    Args:
        inputs: What the model takes.
        columns: As `checked_column` made them, one value a row.
        rows: How many.

    Returns:
        One list a row, in the order of the inputs.

    Example:
        >>> from math import nan
        >>> price = RawInput(name="price", datatype="FP64")
        >>> missing_names([price], {"price": [2.0, missing_value(price)]}, 2)
        [[], ['price']]
    """
    names: list[list[str]] = [[] for _ in range(rows)]
    for spec in inputs:
        absent, column = missing_value(spec), columns[spec.name]
        if (
            absent in column and spec.derived_from is None
        ):  # NaN is found by identity: `checked_column` lets no other one in
            for row, value in enumerate(column):
                if value is absent or value == absent:
                    names[row].append(spec.name)
    return names


def unknown_names(indexed: Sequence[str], unknown: NDArray[np.bool_]) -> list[list[str]]:
    """Names of the ids and categories whose value the model does not know, one list a row.

    Args:
        indexed: Names of the columns of `unknown`.
        unknown: (B, F), as `Scores` carries it.

    Example:
        >>> unknown_names(["user", "brand"], np.array([[False, False], [True, True]]))
        [[], ['user', 'brand']]
    """
    names: list[list[str]] = [[] for _ in range(len(unknown))]
    found = unknown.nonzero()
    for row, column in zip(found[0].tolist(), found[1].tolist(), strict=True):
        names[row].append(indexed[column])
    return names
