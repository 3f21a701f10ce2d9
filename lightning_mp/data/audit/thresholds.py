"""Thresholds: from where on an audit speaks up."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lightning_mp.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on an audit speaks up; the defaults are the ones that the docs explain.

    Args:
        ratio: Largest over smallest magnitude other than zero.
        zero_share: Share of zeros, in [0, 1].
        low_spread: Standard deviation over the magnitude of the mean, at least.
        high_spread: The same, at most.
        flushed_share: Share of the numbers that a format makes zero.
        subnormal_share: Share of the numbers that a format makes subnormal.
        noise: Rounding error (root mean square) over the standard deviation.
        burst_zero_share: Share of zeros from which on a column can be called bursts.
        burst_ratio: 99th percentile over the median, both of the magnitudes other than zero.
        missing_share: Share of missing values.
        missing_change: Difference of that share between the first and the last quarter of the time.
        drift: Population stability index between both quarters.
        auc: Of one column alone, or one minus it.
        near_duplicate: Correlation with another column.
        never_negative: Words in a column's name that rule out negative numbers.

    Raises:
        ConfigurationError: A threshold is negative, or not a number.
    """

    ratio: float = 1e4
    zero_share: float = 0.5
    low_spread: float = 0.1
    high_spread: float = 10.0
    flushed_share: float = 0.0
    subnormal_share: float = 0.01
    noise: float = 2.0**-8
    burst_zero_share: float = 0.9
    burst_ratio: float = 100.0
    missing_share: float = 0.05
    missing_change: float = 0.1
    drift: float = 0.25
    auc: float = 0.95
    near_duplicate: float = 0.9999
    never_negative: tuple[str, ...] = (
        "age", "price", "cost", "count", "qty", "quantity", "spend", "amount", "revenue", "sales",
        "dwell", "duration", "seconds", "minutes", "hours", "days", "views", "clicks", "orders", "stock",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name != "never_negative" and not (isinstance(value, int | float) and value >= 0):
                raise ConfigurationError(
                    f"threshold `{entry.name}` must be a number from 0, got {value!r}", "leave it out"
                )
