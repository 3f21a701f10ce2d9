"""Settings of a synthetic log, as they stand under `synthetic:` in a recipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.errors import ConfigurationError, DataError

Form = Literal["wide", "long"]

VERSION = 1
"""Of the way a log is drawn: the same settings and version give the same log, bit for bit."""
KEY = b"lightning_mp.synthetic"
"""Of the settings in a log's Parquet metadata."""
_AGAIN = "draw one with `write_log(path)`"


@dataclass(frozen=True, kw_only=True)
class SyntheticLog:
    """Size, seed, form and faults of a synthetic log.

    Args:
        impressions: Items shown, from 1.
        users: Users who may turn up, from 1; one in six of them arrives in the course of the log.
        items: Items that may be shown, from 1.
        days: Length of the log, from 1; it begins on Monday 2024-01-01 UTC.
        seed: From 0. Logs of different sizes have different users and items, whatever the seed.
        form: `wide`: a row is an impression with flags `click`, `cart`, `order`. `long`: a row is an event of
            `event_type` impression, click, cart or order. Both tell of the same draw.
        faults: What is recorded wrongly.

    Raises:
        ConfigurationError: A number is below its limit, or `form` is unknown.

    Example:
        >>> SyntheticLog(impressions=1000, seed=7).form
        'wide'
    """

    impressions: int = 500_000
    users: int = 1_500
    items: int = 800
    days: int = 28
    seed: int = 0
    form: Form = "wide"
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name, least in (("impressions", 1), ("users", 1), ("items", 1), ("days", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                problem = f"`synthetic.{name}` must be a whole number from {least}, got {value!r}"
                raise ConfigurationError(problem, f"leave it out for {getattr(SyntheticLog, name):,}")
        if self.form not in ("wide", "long"):
            raise ConfigurationError(
                f"`synthetic.form` must be `wide` or `long`, got {self.form!r}", "use `wide`: a row an impression"
            )

    def to_json(self) -> str:
        """Canonical JSON, the version of the draw included."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of(cls, path: str | Path) -> SyntheticLog:
        """Settings that the log at `path` was drawn from, read from its own metadata.

        Raises:
            DataError: There is no such file, or it is no synthetic log of this package and version.
        """
        try:
            metadata = pq.read_schema(path).metadata or {}
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            raise DataError(f"`{path}` cannot be read as Parquet: {error}", _AGAIN) from error
        if KEY not in metadata:
            raise DataError(f"`{path}` is no synthetic log: its metadata has no `{KEY.decode()}`", _AGAIN)
        return cls.from_json(metadata[KEY].decode())

    @classmethod
    def from_json(cls, text: str) -> SyntheticLog:
        """Read what `to_json` wrote.

        Raises:
            DataError: It was written by another version of the draw.
        """
        record: dict[str, Any] = json.loads(text)
        version = record.pop("version", None)
        if version != VERSION:
            raise DataError(
                f"the synthetic log is of version {version!r}, this package draws version {VERSION}", _AGAIN
            )
        return cls(**{**record, "faults": Faults(**record["faults"])})
