"""The true chance of a click, a cart or an order of each row of a synthetic log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from lightning_mp.data.synthetic.draw import Draw
from lightning_mp.data.synthetic.record import FINGERPRINT, FIRST_ITEM, FIRST_USER
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.world import DEVICES, draw_world
from lightning_mp.errors import ConfigurationError, DataError

Outcome = Literal["click", "cart", "order"]
_READ = ("user_id", "item_id", "event_time", "device", "position", "promotion")


def true_probabilities(
    path: str | Path, rows: ArrayLike | None = None, *, event: Outcome = "click"
) -> NDArray[np.float64]:
    """Chance that an impression leads to a click, a cart or an order, computed from the recorded rows themselves.

    Users and items are drawn again from the seed in the file; user, item, hour, device, position and promotion
    are read from the rows. No function of the log's columns ranks its impressions better, so the AUC of these
    numbers is the Bayes-optimal one: what no model can pass but by luck.

    Args:
        path: A log that `write_log` wrote.
        rows: (N,) 0-based data rows, in any order; all by default. In the long form they must be impressions.
        event: `"click"`, `"cart"` (after a click) or `"order"` (after a cart); all of the impression itself.

    Returns:
        (N,) float64 in [0, 1].

    Raises:
        ConfigurationError: There is no such event.
        DataError: The file is no synthetic log, a row lies outside it or is no impression, or this machine draws
            other users and items from the seed (another NumPy).

    Example:
        >>> import tempfile
        >>> from lightning_mp.data.synthetic.write import write_log
        >>> settings = SyntheticLog(impressions=500, users=50, items=20)
        >>> path = write_log(Path(tempfile.mkdtemp()) / "log.parquet", settings)
        >>> true_probabilities(path, [0, 499]).shape
        (2,)

    Source:
        Devroye, Gyorfi and Lugosi, A Probabilistic Theory of Pattern Recognition, 1996, chapter 2.
    """
    if event not in get_args(Outcome):
        problem = f"`event` must be 'click', 'cart' or 'order', got {event!r}"
        raise ConfigurationError(problem, "leave it out for clicks")
    settings = SyntheticLog.of(path)
    draw = Draw(draw_world(settings))
    with pq.ParquetFile(path) as file:
        written = np.array((file.schema_arrow.metadata or {}).get(FINGERPRINT, b"").split(), dtype=np.float64)
        if not np.allclose(written, draw.fingerprint, rtol=1e-9):
            raise DataError(
                f"`{path}`: this NumPy ({np.__version__}) draws other users and items from seed {settings.seed}",
                "remove the file and draw it again",
            )
        total = file.metadata.num_rows
        wanted = np.arange(total) if rows is None else np.asarray(rows, dtype=np.int64).ravel()
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < total:
            outside = wanted[(wanted < 0) | (wanted >= total)][0]
            raise DataError(f"`{path}` has {total:,} rows, row {outside:,} was asked for", "give rows of this log")
        answer = np.empty(len(wanted))
        order = np.argsort(wanted, kind="stable")
        long = settings.form == "long"
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            begin, end = np.searchsorted(wanted[order], [first, first + size])
            if begin < end:
                here = wanted[order[begin:end]]
                table = file.read_row_group(group, columns=[*_READ, *(["event_type"] if long else [])])
                table = table.take(here - first)
                if long:
                    _require_impressions(path, here, table["event_type"].to_numpy(zero_copy_only=False), event)
                promotion = settings.faults.read_promotion(table["promotion"].to_numpy())
                answer[order[begin:end]] = draw.chances(
                    user=table["user_id"].to_numpy() - FIRST_USER,
                    item=table["item_id"].to_numpy() - FIRST_ITEM,
                    time=table["event_time"].cast("int64").to_numpy(),
                    device=np.searchsorted(DEVICES, table["device"].to_numpy(zero_copy_only=False).astype(str)),
                    position=table["position"].to_numpy(),
                    promotion=promotion,
                )[event]
            first += size
    return answer


def _require_impressions(path: str | Path, rows: NDArray[np.int64], kinds: NDArray[np.object_], event: str) -> None:
    other = np.flatnonzero(kinds != "impression")
    if len(other):
        raise DataError(
            f"`{path}`: row {rows[other[0]]:,} is a {kinds[other[0]]}; only an impression has a chance of "
            f"{'an' if event == 'order' else 'a'} {event}",
            "give rows whose `event_type` is `impression`",
        )
