"""LatestFeatures: what a bundle knows of users and items, for rows that carry keys alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.bundle import TABLES, Bundle
from lightning_mp.errors import BundleError

_VALUE: Final = "value/"


@dataclass(frozen=True, slots=True)
class _Table:
    key: str
    rows: dict[Any, int]
    as_of: NDArray[np.int64]
    values: dict[str, NDArray[Any]]


class LatestFeatures:
    """The `tables/` of a bundle: the latest features of users and items by their keys.

    A name that a row leaves out takes the latest value that is known for the row's user or item; one that it holds,
    null included, stays as it is: the caller knows better. For a key that is not in the table nothing is filled in,
    and the model's rule for missing values holds.

    Args:
        bundle: An opened bundle.

    Raises:
        BundleError: A table cannot be read.
    """

    def __init__(self, bundle: Bundle) -> None:
        names = [name for name in bundle.manifest.files if name.startswith(f"{TABLES}/")]
        self._tables = [_read(bundle, name) for name in names]

    def __len__(self) -> int:
        return sum(len(table.rows) for table in self._tables)

    def complete(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Rows with what they leave out filled in, as far as it is known.

        Args:
            rows: One mapping a row, `{name: value}`; what is no mapping is given back as it is.

        Returns:
            As many rows; those given are not changed.
        """
        return [self._completed(row) if isinstance(row, Mapping) else row for row in rows]

    def as_of(self, name: str, key: object) -> int | None:
        """When the values of a key were taken, in UTC microseconds; `None` for a key that is not known.

        Args:
            name: Name of the feature that the key is given as.
            key: The key, as a row holds it.
        """
        for table in self._tables:
            if table.key == name and _hashable(key) and key in table.rows:
                return int(table.as_of[table.rows[key]])
        return None

    def _completed(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        found = dict(row)
        for table in self._tables:
            key = row.get(table.key)
            place = table.rows.get(key) if _hashable(key) else None
            if place is not None:
                for name, values in table.values.items():
                    if name not in row:
                        value = values[place].item()
                        found[name] = None if value != value else value  # noqa: PLR0124 - NaN is how a number is missing
        return found


def _hashable(key: object) -> bool:
    return isinstance(key, str | int) and not isinstance(key, bool)


def _read(bundle: Bundle, name: str) -> _Table:
    try:
        with np.load(io.BytesIO((bundle.path / name).read_bytes()), allow_pickle=False) as arrays:
            values = {part.removeprefix(_VALUE): arrays[part] for part in arrays if part.startswith(_VALUE)}
            rows = {key: row for row, key in enumerate(arrays["key"].tolist())}
            return _Table(str(arrays["name"]), rows, arrays["as_of"], values)
    except (OSError, ValueError, KeyError) as error:
        raise BundleError(f"`{bundle.path / name}` cannot be read: {error}", "export the model again") from error
