"""Write a synthetic log of any size to Parquet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lightning_mp.artifacts import replacing
from lightning_mp.data.synthetic.draw import Draw
from lightning_mp.data.synthetic.impressions import Impressions
from lightning_mp.data.synthetic.record import log_schema, record
from lightning_mp.data.synthetic.settings import Form, SyntheticLog
from lightning_mp.data.synthetic.visiting_time import visiting_time
from lightning_mp.data.synthetic.world import draw_world
from lightning_mp.errors import DataError

PART = 2**18
"""Impressions drawn at a time: it bounds memory (about 200 MB) and, being fixed, keeps a seed's log the same."""

Columns = dict[str, NDArray[np.generic]]


def write_log(
    path: str | Path, settings: SyntheticLog | None = None, *, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Draw a log of impressions, clicks, carts and orders and write it as one Parquet file, sorted by time.

    Of the impressions 5 % are clicked, 0.9 % put in the cart, 0.4 % ordered, each within the one before. The
    chance of a click is a function of what the log shows, see `true_probabilities`. A file at `path` that was
    drawn from the same settings is left as it is; the file is replaced whole or not at all.

    Columns, in both forms: `user_id` int64, `item_id` int64, `event_time` (UTC, microseconds), `session_id` int64,
    `segment`, `age` (years), `spend` (over the past year), `device`, `position` (1 to 10), `category_id` int64,
    `category_code` (33 % missing), `brand` (16 % missing), `price`, `promotion` (0 on 95 % of the rows, else up
    to 1), `dwell_seconds` (where there was a click: it is known only afterwards). Wide form: `click`, `cart`,
    `order`, bool. Long form: `event_type`, and `event_time` is that of the event.

    Args:
        path: File to write; its folder is made when it is missing.
        settings: What is drawn; `SyntheticLog()` when left out.
        progress: Called with the impressions written and those asked for, after each part.

    Returns:
        `path`.

    Raises:
        ArtifactError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> settings = SyntheticLog(impressions=1000, users=50, items=20, seed=1)
        >>> path = write_log(Path(tempfile.mkdtemp()) / "log.parquet", settings)
        >>> pq.read_metadata(path).num_rows
        1000
    """
    settings = settings or SyntheticLog()
    impressions, days = settings.impressions, settings.days
    path = Path(path)
    with suppress(DataError):
        if SyntheticLog.of(path) == settings:
            return path
    draw = Draw(draw_world(settings))
    rates = _click_rates(draw) if settings.faults.future_leaks else None
    schema = log_schema(settings, draw.fingerprint)
    held: Columns = {}
    with replacing(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part, first in enumerate(range(0, impressions, PART)):
            last = min(first + PART, impressions)
            columns = _events(draw.impressions(part, first, last), settings.form)
            if held:
                columns = {name: np.concatenate([held[name], columns[name]]) for name in columns}
            order = np.argsort(columns["time"], kind="stable")
            # Sessions reach into the next part's time: what lies there waits, so that the file stays sorted.
            edge = visiting_time(np.array([last / impressions]), days)[0]
            ready = len(order) if last == impressions else int(np.searchsorted(columns["time"][order], edge))
            held = {name: values[order[ready:]] for name, values in columns.items()}
            now = {name: values[order[:ready]] for name, values in columns.items()}
            writer.write_table(record(draw.world, now, rates, schema))
            if progress is not None:
                progress(last, impressions)
    return path


def _events(shown: Impressions, form: Form) -> Columns:
    columns: Columns = {name: getattr(shown, name) for name in shown.__dataclass_fields__ if name != "chance"}
    if form == "wide":
        return columns
    dwell_us = (shown.dwell * 1e6).astype(np.int64)
    clicked = shown.time + 2_000_000 + dwell_us // 10
    times = (shown.time, clicked, clicked + dwell_us, clicked + 3 * dwell_us)
    rows = (np.arange(len(shown.time)), *(np.flatnonzero(flag) for flag in (shown.click, shown.cart, shown.order)))
    long = {name: np.concatenate([values[row] for row in rows]) for name, values in columns.items()}
    long["time"] = np.concatenate([time[row] for time, row in zip(times, rows, strict=True)])
    long["event"] = np.repeat(np.arange(4), [len(row) for row in rows])
    return long


def _click_rates(draw: Draw) -> NDArray[np.float64]:
    """Click rate of each user over the whole log: a second draw, since the future must be known first."""
    settings = draw.world.settings
    counts = np.zeros((2, settings.users))
    for part, first in enumerate(range(0, settings.impressions, PART)):
        shown = draw.impressions(part, first, min(first + PART, settings.impressions))
        counts[0] += np.bincount(shown.user, minlength=settings.users)
        counts[1] += np.bincount(shown.user, weights=shown.click, minlength=settings.users)
    return np.asarray(counts[1] / np.maximum(counts[0], 1))
