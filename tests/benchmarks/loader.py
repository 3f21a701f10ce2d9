"""Rows a second out of a feature store, beside what copies the same bytes and beside other loaders.

    python tests/benchmarks/loader.py --json --check          # three sizes up to 2 M rows of 64 float16 and 8 ids
    python tests/benchmarks/loader.py --quick

All run in one process, interleaved, one thread of torch. Rates are rows per CPU second, over all threads: the clock
on the wall, which stands beside, counts what the neighbours on the machine do. `bare` is `randperm` and `index_select`
of the very matrices that a batch has; `memcpy` copies them batch by batch in the stored order. The loader's batches in
the stored order are parts of the mapped file, so both are measured with every byte read as well: that is when the pages
of a map are met. The slow peers, whose rate does not depend on the number of rows, go through 30 batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch
from machine import machine
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.datamodules.row_order import RowOrder
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.schema import Feature, FeatureSchema

BATCH, SLOW_BATCHES = 4096, 30
SIZES = (100_000, 500_000, 2_000_000)
GOALS = {
    ("global shuffle", "bare randperm + index_select"): 0.80,
    ("global shuffle", "Dataset row by row"): 20,
    ("global shuffle", "TensorDataset"): 60,
    ("global shuffle", "__getitems__"): 8,
    ("global shuffle", "FuxiCTR"): 10,
    ("stored order", "memcpy"): 0.90,
    ("stored order, then read", "memcpy, then read"): 0.90,
    ("block shuffle", "memcpy"): 0.35,
}


def write_store(path: Path, rows: int) -> FeatureStore:
    draw = np.random.default_rng(0)
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=rows * 64).astype(np.float16)), 64)
    columns = {"x": numbers, **{f"c{i}": draw.integers(0, 10_000, rows) for i in range(8)}}
    ids = [
        Feature(
            name=f"c{i}",
            kind="categorical",
            role="context",
            source_dtype="int64",
            stored_dtype="int32",
            vocabulary_size=10_000,
        )
        for i in range(8)
    ]
    x = Feature(name="x", kind="vector", role="context", source_dtype="halffloat", stored_dtype="float16", width=64)
    store = FeatureStore(path)
    store.write({"train": pa.table(columns)}, schema=FeatureSchema(features=(x, *ids)))
    return store


class RowByRow(Dataset[tuple[Tensor, ...]]):
    def __init__(self, *matrices: Tensor) -> None:
        self.matrices = matrices

    def __len__(self) -> int:
        return len(self.matrices[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(matrix[index] for matrix in self.matrices)


class ManyAtOnce(RowByRow):
    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return tuple(matrix[indices] for matrix in self.matrices)


def fuxictr(dense: Tensor, ids: Tensor, folder: Path) -> Iterator[object] | None:
    """FuxiCTR's own loader over the same columns in its own file; `None` where it is not installed."""
    try:
        from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
    except ImportError:
        return None
    columns = {f"x{i}": dense[:, i].float().numpy() for i in range(dense.shape[1])}
    columns |= {f"c{i}": ids[:, i].numpy() for i in range(ids.shape[1])}
    file = folder / "fuxictr.npz"
    if not file.exists():
        np.savez(file, **columns)
    places = {name: index for index, name in enumerate(columns)}
    told = SimpleNamespace(
        features={name: {"type": "numeric"} for name in columns}, labels=[], get_column_index=places.__getitem__
    )
    return NpzDataLoader(told, str(file), batch_size=BATCH, shuffle=True, num_workers=0)


def count(batch: dict[str, Tensor]) -> int:
    return len(batch["row"])


def read(batch: dict[str, Tensor]) -> int:
    for tensor in batch.values():
        (tensor.view(torch.int32) if tensor.dtype == torch.float16 else tensor).sum()
    return len(batch["row"])


def runs(store: FeatureStore, folder: Path) -> dict[str, tuple[int, Callable[[], int]]]:
    """Each way by its name: the rows it goes through and what goes through them."""
    table = store.load()
    rows = len(table)
    dense, ids, keys = (torch.from_numpy(table.group(name)) for name in ("dense16", "ids", "keys"))
    matrices = (dense, ids, keys)

    def bare() -> int:
        for chosen in torch.randperm(rows).split(BATCH):
            for matrix in matrices:
                matrix.index_select(0, chosen)
        return rows

    def memcpy() -> int:
        for first in range(0, rows, BATCH):
            for matrix in matrices:
                matrix[first : first + BATCH].clone()
        return rows

    def memcpy_read() -> int:
        for first in range(0, rows, BATCH):
            copied = [matrix[first : first + BATCH].clone() for matrix in matrices]
            read({"dense": copied[0], "ids": copied[1], "user": copied[2][:, 2], "row": copied[2][:, 1]})
        return rows

    def ours(shuffle: str, use: Callable[[dict[str, Tensor]], int]) -> Callable[[], int]:
        loader = ResumableLoader(StoreDataset(store.load()), batch_size=BATCH, shuffle=shuffle)

        def go() -> int:
            loader.set_epoch(loader.epoch + 1)
            return sum(use(batch) for batch in loader)

        return go

    def peer(loader: object, batches: int) -> Callable[[], int]:
        def go() -> int:
            return sum(len(next(iter(b.values())) if isinstance(b, dict) else b[0]) for b in islice(loader, batches))

        return go

    found = {
        "memcpy": memcpy,
        "bare randperm + index_select": bare,
        "global shuffle": ours("global", count),
        "block shuffle": ours("block", count),
        "stored order": ours("none", count),
        "memcpy, then read": memcpy_read,
        "stored order, then read": ours("none", read),
        "Dataset row by row": peer(DataLoader(RowByRow(dense, ids), BATCH, shuffle=True), SLOW_BATCHES),
        "TensorDataset": peer(DataLoader(TensorDataset(dense, ids), BATCH, shuffle=True), SLOW_BATCHES),
        "__getitems__": peer(DataLoader(ManyAtOnce(dense, ids), BATCH, shuffle=True, collate_fn=tuple), SLOW_BATCHES),
    }
    if (loader := fuxictr(dense, ids, folder)) is not None:
        found["FuxiCTR"] = peer(loader, SLOW_BATCHES)
    return found


def measured(store: FeatureStore, folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Million rows per CPU second and per second of the wall, medians."""
    ways = runs(store, folder)
    for name, go in ways.items():
        if not name[0].isupper():
            go()
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, go in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            rows = go() / 1e6
            seen[name].append((rows / (time.process_time() - cpu), rows / (time.perf_counter() - wall)))
    return {
        name: {"cpu": statistics.median(c for c, _ in pairs), "wall": statistics.median(w for _, w in pairs)}
        for name, pairs in seen.items()
    }


def mixing(shuffle: str, rows: int) -> float:
    """Variance of batch means of a column that drifts with time, over that of independent draws."""
    draw = np.random.default_rng(1)
    drift = torch.tensor(draw.permutation(np.linspace(0, 1, rows)))  # a store's rows are shuffled when written
    order = RowOrder(rows, batch_size=BATCH, shuffle=shuffle, seed=1)
    means = [drift[batch].mean() for epoch in range(20) for batch in order.batches(epoch) if len(batch) == BATCH]
    return float(torch.stack(means).var() / (drift.var() / BATCH))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="one size, one repeat")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that is not installed misses no goal")
    parser.add_argument("--repeats", type=int, default=5, help="of each way")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sizes, repeats = (SIZES[:1], 1) if options.quick else (SIZES, options.repeats)
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            rates = measured(write_store(Path(name) / "store", size), Path(name), repeats)
        print(f"\n{size:,} rows of 64 float16 and 8 ids, batch {BATCH:,}; million rows a second of CPU (of the wall)")
        for way, rate in rates.items():
            print(f"  {way:30s} {rate['cpu']:8.2f} ({rate['wall']:.2f})")
            rows.append(
                {"rows": size, "way": way, "mrows_per_cpu_second": rate["cpu"], "mrows_per_second": rate["wall"]}
            )
    checks = []
    for (ours, peer), goal in GOALS.items():
        if peer not in rates:
            print(f"skipped: {peer} is not installed (tests/benchmarks/requirements-benchmarks.txt)")
            checks.append({"name": f"{ours} / {peer}", "value": None, "goal": goal, "ok": options.allow_missing})
            continue
        value = rates[ours]["cpu"] / rates[peer]["cpu"]
        checks.append({"name": f"{ours} / {peer}", "value": value, "goal": goal, "ok": value >= goal})
    for shuffle in ("global", "block"):
        value = mixing(shuffle, sizes[-1])
        name = f"{shuffle} shuffle: variance of batch means / that of independent draws"
        checks.append({"name": name, "value": value, "goal": 1.2, "ok": value <= 1.2})
    print()
    for check in checks:
        value = "-" if check["value"] is None else f"{check['value']:.3g}"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {value} (goal {check['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "loader", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
