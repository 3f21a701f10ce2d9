"""MovieLens 100K, fetched at run time, and the three splits that the benchmark ranks on.

The ratings may not be redistributed: the wheel of RecBole 1.2.1 holds them, and pip brings it into a cache folder.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CACHE = Path.home() / ".cache" / "lightning_mp" / "ml100k"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
INSIDE = "recbole/dataset_example/ml-100k/ml-100k"


@dataclass(frozen=True)
class Ratings:
    """Columns of the ratings, in the order of the file; users and items are codes from 0."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    time: np.ndarray  # int64 microseconds
    users: int
    items: int

    def take(self, rows: np.ndarray) -> Ratings:
        columns = (self.user[rows], self.item[rows], self.rating[rows], self.time[rows])
        return Ratings(*columns, self.users, self.items)


def fetch(cache: Path = CACHE) -> Path:
    """The wheel, downloaded once.

    Raises:
        RuntimeError: pip cannot bring it.
    """
    wheel = cache / WHEEL
    if not wheel.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache)]
        done = subprocess.run([*command, "recbole==1.2.1"], capture_output=True, text=True, check=False)
        if done.returncode or not wheel.is_file():
            raise RuntimeError(f"pip did not bring {WHEEL}: {done.stderr.strip()[-300:]}")
    return wheel


def table(name: str, cache: Path = CACHE) -> dict[str, list[str]]:
    """Columns of `ml-100k.inter`, `.item` or `.user`, as text."""
    with zipfile.ZipFile(fetch(cache)) as wheel:
        text = wheel.read(f"{INSIDE}.{name}").decode("utf-8")
    lines = [line.rstrip("\n").split("\t") for line in io.StringIO(text)]
    names = [column.partition(":")[0] for column in lines[0]]
    return {column: [line[i] for line in lines[1:]] for i, column in enumerate(names)}


def ratings(cache: Path = CACHE) -> Ratings:
    """All 100,000 ratings."""
    rows = table("inter", cache)
    user, item = (np.array(rows[name], dtype=np.int64) - 1 for name in ("user_id", "item_id"))
    time = np.array(rows["timestamp"], dtype=np.float64).astype(np.int64) * 1_000_000
    return Ratings(
        user, item, np.array(rows["rating"], dtype=np.float64), time, int(user.max()) + 1, int(item.max()) + 1
    )


def microsoft_split(data: Ratings, *, ratio: float = 0.75, seed: int = 42) -> tuple[Ratings, Ratings]:
    """Train and test as Microsoft Recommenders 1.2.1 splits them for its table, row for row.

    Its benchmark calls `python_stratified_split(df, ratio=0.75, filter_by="item")`, seed 42: rows of each *item* are
    put in random order, and the first round(ratio * rows) are train.
    """
    draw = np.random.RandomState(seed).rand(len(data.item))  # their generator
    order = np.lexsort((draw, data.item))
    item = data.item[order]
    rank = np.arange(len(item)) - np.searchsorted(item, item) + 1
    train = rank <= np.round(ratio * np.bincount(item)[item])
    return data.take(order[train]), data.take(order[~train])


def leave_one_out(data: Ratings) -> tuple[Ratings, Ratings]:
    """Each user's rows but the last in time, and the last; rows of one time in the order of the file."""
    order = np.lexsort((np.arange(len(data.user)), data.time, data.user))
    last = np.append(data.user[order][1:] != data.user[order][:-1], True)
    return data.take(order[~last]), data.take(order[last])


def time_split(data: Ratings, *, test: float = 0.2) -> tuple[Ratings, Ratings]:
    """The first ratings of all users and the last, cut at one moment."""
    cut = np.sort(data.time)[int(len(data.time) * (1 - test))]
    return data.take(np.flatnonzero(data.time < cut)), data.take(np.flatnonzero(data.time >= cut))
