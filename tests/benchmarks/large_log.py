"""What `prepare` takes of memory for a log larger than it may have.

    python tests/benchmarks/large_log.py --json --check     # 2 GB of CSV in a process that may have 1 GB
    python tests/benchmarks/large_log.py --quick

The log has the columns, the shares and the lengths of a shop's: a million users, 150,000 items, their category, brand
and price, views, and carts and orders of the same pair behind some of them. `prepare` reads it in a process of its own
under `RLIMIT_DATA`, the limit on private memory that the system itself keeps, labels each view with whether an order
followed within the hour, fills brands by their category, makes two histories, and writes a store. The peak is that of
`RssAnon` in `/proc`: private memory; what is mapped from a file does not count, the system may put it out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from machine import machine
from pyarrow import csv

from lightning_mp.data.columns import Columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.prepare import prepare

LIMIT = 1_000_000_000
USERS, ITEMS, STEP = 1_000_000, 150_000, 500_000
FEATURES = [
    FeatureSpec(name="user_id", kind="id", role="user", min_count=2),
    FeatureSpec(name="product_id", kind="id", role="item", min_count=5),
    FeatureSpec(name="category_code", kind="categorical", role="item"),
    FeatureSpec(name="brand", kind="categorical", role="item", min_count=5, missing="mode", indicator=True,
                missing_by=("category_id", "category_code")),
    FeatureSpec(name="price", kind="numeric", role="item", transform="log1p_zscore"),
    FeatureSpec(name="hour", kind="categorical", of="hour"),
    FeatureSpec(name="user_views_1h", kind="numeric", transform="log1p_zscore",
                history={"of": "view", "by": ["user"], "window": "1h"}),
    FeatureSpec(name="item_order_rate_7d", kind="numeric",
                history={"of": "order", "per": "view", "by": ["item"], "window": "7d", "as": "rate", "prior": 20}),
]  # fmt: skip


def write(path: Path, size: float) -> int:
    """Write a log of about `size` bytes; its rows."""
    draw, rows, hour = np.random.default_rng(0), 0, 0
    words = np.array([f"{a}.{b}.{c}" for a in ("home", "sport", "electronics") for b in ("audio", "kitchen", "bedroom")
                      for c in ("small", "large", "washer", "headphone")])  # fmt: skip
    category = draw.integers(0, 600, ITEMS)
    code = np.where(np.arange(600) % 10 < 7, words[np.arange(600) % len(words)], "")
    brand = np.where(
        draw.random(ITEMS) < 0.18, "", [f"brand{rank}" for rank in np.minimum(draw.zipf(1.3, ITEMS), 3000)]
    )
    price = np.round(draw.lognormal(4.5, 1.2, ITEMS), 2)
    start = np.datetime64("2019-10-01T00:00:00", "s")
    with path.open("wb") as file:
        while file.tell() < size:
            user = (USERS * draw.random(STEP) ** 1.5).astype(np.int64)
            item = (ITEMS * draw.random(STEP) ** 3).astype(np.int64)
            seconds = np.sort(draw.integers(0, 36_000, STEP))
            kind = np.full(STEP, "view", dtype="<U8")
            later = np.flatnonzero(draw.random(STEP) < 0.06)
            later = later[later > 20]
            before = later - draw.integers(1, 20, len(later))
            user[later], item[later] = user[before], item[before]
            kind[later] = draw.choice(["cart", "purchase"], len(later), p=[0.6, 0.4])
            table = pa.table({
                "event_time": pa.array(np.datetime_as_string(start + hour * 3600 + seconds, timezone="UTC")),
                "event_type": pa.array(kind),
                "product_id": pa.array(1_000_000 + item * 337),
                "category_id": pa.array(2_053_013_550_000_000_000 + category[item] * 1_000_003),
                "category_code": pa.array(code[category[item]]),
                "brand": pa.array(brand[item]),
                "price": pa.array(price[item]),
                "user_id": pa.array(200_000_000 + user * 431),
            })  # fmt: skip
            options = csv.WriteOptions(include_header=rows == 0, quoting_style="none")
            csv.write_csv(table, file, options)
            rows, hour = rows + STEP, hour + 10
    return rows


def child(log: Path, store: Path) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    prepare(
        log, store, columns=Columns(user="user_id", item="product_id", time="event_time", event="event_type"),
        event_map={"purchase": "order"}, label=EventLabel(event="order", per="view", within="1h"), features=FEATURES,
        memory_limit="300MB", progress=lambda line: print(line, flush=True),
    )  # fmt: skip


def measure(folder: Path, size: float) -> dict[str, object]:
    log = folder / "log.csv"
    rows = write(log, size)
    # The pool that Arrow takes by itself sets aside a gigabyte of addresses at once, which the limit counts as taken.
    settings = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    begun, peak, told = time.perf_counter(), 0, b""
    command = [sys.executable, __file__, "--child", str(log), str(folder / "store")]
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.set_blocking(process.stdout.fileno(), False)
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status")
            lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
            found = [int(line.split()[1]) for line in lines if line.startswith("RssAnon")]
            peak = max(peak, *found, 0)
            told += process.stdout.read() or b""
            time.sleep(0.01)
        told += process.stdout.read() or b""
    if process.returncode:
        print(told.decode())
    return {
        "log_bytes": log.stat().st_size,
        "rows": rows,
        "done": process.returncode == 0,
        "wall_s": round(time.perf_counter() - begun, 1),
        "peak_private_mb": round(peak * 1024 / 1e6),
        "store_bytes": sum(file.stat().st_size for file in (folder / "store").rglob("*") if file.is_file()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where the limit is not kept")
    parser.add_argument("--quick", action="store_true", help="100 MB")
    parser.add_argument("--folder", help="where the log and the store lie for a while; 6 GB")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*map(Path, options.child))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), 1e8 if options.quick else 2e9)
    ok = bool(found["done"]) and found["peak_private_mb"] * 1e6 <= LIMIT
    print(", ".join(f"{name} {value:,}" for name, value in found.items()))
    check = {
        "name": "private memory of prepare, MB",
        "value": found["peak_private_mb"],
        "goal": LIMIT // 10**6,
        "ok": ok,
    }
    print(f"{'ok  ' if ok else 'MISS'} {check['name']}: {check['value']} (goal {check['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "large_log", "machine": machine(), "checks": [check], "rows": [found]}))
    return int(options.check and not ok)


if __name__ == "__main__":
    sys.exit(main())
