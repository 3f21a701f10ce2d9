"""A number over the steps of a run, in bounded space, with its peaks kept."""

from __future__ import annotations

import math
from typing import Any

_BUCKETS = 128
_GAPS = 64


class Series:
    """Steps and values of one number, however long the run: neighbours are merged, and of those the extremes stay.

    Values that are not finite are kept as steps alone, the first 64 of them.

    Attributes:
        gaps: Steps whose value was not finite.

    Example:
        >>> series = Series()
        >>> for step in range(10_000):
        ...     series.add(step, 100.0 if step == 5000 else 1.0)
        >>> len(series.points) < 500, max(value for _, value in series.points)
        (True, 100.0)
    """

    def __init__(self) -> None:
        self.gaps: list[int] = []
        self._buckets: list[list[list[float]]] = []
        self._size = 1

    @property
    def points(self) -> list[tuple[int, float]]:
        """(step, value) pairs in the order of the steps."""
        return [(int(step), value) for bucket in self._buckets for step, value in bucket[:-1]]

    @property
    def last(self) -> float | None:
        """The last finite value."""
        points = self.points
        return points[-1][1] if points else None

    def add(self, step: int, value: float) -> None:
        """Append a value; steps must not fall."""
        if not math.isfinite(value):
            if len(self.gaps) < _GAPS:
                self.gaps.append(step)
            return
        if self._buckets and self._buckets[-1][-1][0] < self._size:
            bucket = self._buckets[-1]
            self._buckets[-1] = _merged([*bucket[:-1], [step, value]], bucket[-1][0] + 1)
        else:
            self._buckets.append([[step, value], [1, 0.0]])  # the last pair counts the values
        if len(self._buckets) > _BUCKETS:
            pairs = zip(self._buckets[::2], [*self._buckets[1::2], [[0, 0.0]]], strict=False)
            self._buckets = [_merged(a[:-1] + b[:-1], a[-1][0] + b[-1][0]) for a, b in pairs]
            self._size *= 2

    def to_state(self) -> dict[str, Any]:
        """Plain Python, as a checkpoint holds it."""
        buckets = [[list(pair) for pair in bucket] for bucket in self._buckets]
        return {"buckets": buckets, "size": self._size, "gaps": list(self.gaps)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Series:
        """What `to_state` gave, as a series of its own."""
        series = cls()
        series._buckets = [[list(pair) for pair in bucket] for bucket in state["buckets"]]
        series._size, series.gaps = state["size"], list(state["gaps"])
        return series

    def to_record(self) -> dict[str, Any]:
        """Plain JSON: `steps`, `values`, and `not_finite`, the steps whose value was no number."""
        points = self.points
        return {"steps": [s for s, _ in points], "values": [v for _, v in points], "not_finite": self.gaps}


def _merged(points: list[list[float]], count: float) -> list[list[float]]:
    """First, lowest, highest and last of the points, and how many values they stand for."""
    if len(points) > 4:
        low, high = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
        chosen = [points[0], low, high, points[-1]]
        points = [p for i, p in enumerate(points) if any(p is c for c in chosen)]
    return [*points, [count, 0.0]]
