"""Kinds of events: how a log's own words become ours, counted, nothing guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.errors import ConfigurationError, DataError

EVENT_KINDS: Final = ("impression", "view", "click", "cart", "order")
IGNORE: Final = "ignore"


def fold(name: str) -> str:
    """The rule by which words are compared: surrounding white space and case do not count.

    Example:
        >>> fold(" View ")
        'view'
    """
    return name.strip().casefold()


@dataclass(slots=True)
class EventKinds:
    """Translate a log's event names, batch by batch, and count them.

    Args:
        event_map: Kind of each name of the log: `{"purchase": "order", "search": "ignore"}`; `ignore` or null drops
            its rows. The five kinds stand for themselves.

    Attributes:
        counts: Rows by kind.
        ignored: Dropped rows by the log's name.
        unknown: Rows by the log's name, for names that are neither a kind nor mapped.
        first_line: Line of the first row of each unknown name.

    Raises:
        ConfigurationError: The map leads to something that is not a kind.
    """

    event_map: Mapping[str, str | None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    first_line: dict[str, int] = field(default_factory=dict)
    _kind_of: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kind_of = {kind: kind for kind in EVENT_KINDS}
        for name, kind in self.event_map.items():
            if kind is not None and kind not in (*EVENT_KINDS, IGNORE):
                near = get_close_matches(kind, EVENT_KINDS, 1)
                problem = f"`event_map`: `{name}` leads to {kind!r}, kinds are {', '.join(EVENT_KINDS)} and {IGNORE}"
                raise ConfigurationError(problem, f"did you mean `{near[0]}`?" if near else "use one of these")
            self._kind_of[fold(name)] = kind or IGNORE

    def translate(self, names: pa.Array, lines: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Kinds of a batch of rows.

        Args:
            names: (N,) text, without nulls.
            lines: (N,) where each stands.

        Returns:
            (N,) text (a kind; rows that are not kept hold any text), and whether each row is kept.
        """
        encoded = names.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        words = encoded.dictionary.to_pylist()
        kinds = [self._kind_of.get(fold(word)) for word in words]
        rows = np.bincount(codes, minlength=len(words)).tolist()
        for code, (word, kind, count) in enumerate(zip(words, kinds, rows, strict=True)):
            if kind is None:
                self.unknown[word] += count
                self.first_line.setdefault(word, int(lines[int(np.argmax(codes == code))]))
            elif kind == IGNORE:
                self.ignored[word] += count
            else:
                self.counts[kind] += count
        kept = np.array([kind is not None and kind != IGNORE for kind in kinds], dtype=bool)
        translated = pa.array([kind or "" for kind in kinds], type=pa.string()).take(encoded.indices)
        return translated, kept[codes] if len(words) else np.zeros(0, dtype=bool)

    def require_known(self, file: str, column: str) -> None:
        """Refuse a log that held names which nobody mapped.

        Raises:
            DataError: It did; the names are listed with their counts and the nearest kind.
        """
        if not self.unknown:
            return
        shown = [
            f"`{word}` ({count:,} row{'s' if count > 1 else ''}, first at line {self.first_line[word]:,})"
            for word, count in self.unknown.most_common(5)
        ]
        more = f" and {len(self.unknown) - 5:,} more" if len(self.unknown) > 5 else ""
        known = ", ".join(f"{kind} {count:,}" for kind, count in self.counts.most_common()) or "none"
        word = self.unknown.most_common(1)[0][0]
        near = get_close_matches(fold(word), EVENT_KINDS, 1, cutoff=0.5)
        to_kind = f"as in `{fold(word)}: {near[0]}`" if near else "to the kind that it is"
        raise DataError(
            f"`{file}`, column `{column}`: unknown kinds of event: {', '.join(shown)}{more}; known rows: {known}; "
            f"kinds are {', '.join(EVENT_KINDS)}",
            f"map each in `event_map`, {to_kind}, or as `{fold(word)}: {IGNORE}` to drop its rows",
        )
