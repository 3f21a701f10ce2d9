"""Opening and reading a feature store, beside pandas on CSV and other readers, and what float16 saves on disk.

    python tests/benchmarks/store.py --json --check        # three sizes up to 2 M rows of 64 numbers and 8 ids
    python tests/benchmarks/store.py --quick

Each reading is a process of its own that has its packages imported and, for the private memory, one that has opened a
tiny store before. `opened and touched` opens the store and reads every byte once. Seconds are of CPU where a check
compares them: the clock on the wall counts the neighbours on the machine; it stands beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from machine import machine

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.schema import Feature, FeatureSchema

SIZES = (100_000, 500_000, 2_000_000)
STARTED = """
import resource, time
def private():
    with open('/proc/self/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('Anonymous')) / 1024
"""
WAYS = {
    "store: open": (
        None,
        "from lightning_mp.data.store.feature_store import FeatureStore",
        "FeatureStore({store!r}).load().dense",
    ),
    "store: open and touch every byte": (
        None,
        "import numpy as np\nfrom lightning_mp.data.store.feature_store import FeatureStore",
        """
        table = FeatureStore({store!r}).load()
        for name in ('dense16', 'ids', 'keys'):
            table.group(name).view(np.uint64).sum()
        """,
    ),
    "store, Parquet form: read": (
        None,
        "from lightning_mp.data.store.feature_store import FeatureStore",
        "FeatureStore({parquet_store!r}).load().dense",
    ),
    "pandas: CSV": ("pandas", "import pandas", "pandas.read_csv({csv!r}, dtype={dtypes!r})"),
    "pandas: Parquet, float32": ("pandas", "import pandas", "pandas.read_parquet({parquet!r})"),
    "pyarrow: CSV": (None, "import pyarrow.csv", "pyarrow.csv.read_csv({csv!r})"),
    "polars: Parquet, float32": ("polars", "import polars", "polars.read_parquet({parquet!r})"),
    "DuckDB: Parquet to NumPy": (
        "duckdb",
        "import duckdb",
        """
        duckdb.execute("SET threads=1; SET enable_progress_bar=false")
        duckdb.read_parquet({parquet!r}).fetchnumpy()
        """,
    ),
}


def write(folder: Path, rows: int) -> dict[str, object]:
    """The same rows in every form; where each lies."""
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(rows, 64)).astype(np.float32)
    ids = {f"c{i}": draw.integers(0, 10_000, rows).astype(np.int32) for i in range(8)}
    plain = pa.table({**{f"x{i}": numbers[:, i] for i in range(64)}, **ids})
    pq.write_table(plain, folder / "plain.parquet", compression="zstd")
    pa.csv.write_csv(plain, folder / "plain.csv")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), 64)
    features = [
        Feature(name="x", kind="vector", role="context", source_dtype="float", stored_dtype="float32", width=64),
        *(
            Feature(
                name=name,
                kind="categorical",
                role="context",
                source_dtype="int32",
                stored_dtype="int32",
                vocabulary_size=10_000,
            )
            for name in ids
        ),
    ]
    table, schema = pa.table({"x": lists, **ids}), FeatureSchema(features=tuple(features))
    stores = {
        "store": FeatureStore(folder / "store", dtype_mapping={"x": "float16"}),
        "float32_store": FeatureStore(folder / "float32"),
        "parquet_store": FeatureStore(folder / "parquet", "parquet", {"x": "float16"}),
        "tiny": FeatureStore(folder / "tiny", dtype_mapping={"x": "float16"}),
    }
    for name, store in stores.items():
        store.write({"train": table.slice(0, 10) if name == "tiny" else table}, schema=schema)
    dtypes = {**{f"x{i}": "float32" for i in range(64)}, **dict.fromkeys(ids, "int32")}
    paths = {name: str(store.path) for name, store in stores.items()}
    return {**paths, "csv": str(folder / "plain.csv"), "parquet": str(folder / "plain.parquet"), "dtypes": dtypes}


def once(way: str, places: dict[str, object]) -> dict[str, float]:
    """One reading in a process of its own: seconds of CPU and of the wall, and private memory in MiB."""
    _, imports, action = WAYS[way]
    tiny = action.replace("{store!r}", "{tiny!r}").replace("{parquet_store!r}", "{tiny!r}")
    warm = tiny if "FeatureStore" in action else ""
    program = "\n".join(
        [
            STARTED,
            imports,
            textwrap.dedent(warm).strip().format(**places),
            "memory, wall, cpu = private(), time.perf_counter(), time.process_time()",
            "kept = " + action.format(**places)
            if action.startswith("FeatureStore")
            else textwrap.dedent(action).strip().format(**places),
            "print(time.process_time() - cpu, time.perf_counter() - wall, private() - memory)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-2000:]}")
    return dict(zip(("cpu", "wall", "private"), map(float, done.stdout.splitlines()[-1].split()), strict=True))


def bytes_of(folder: object) -> int:
    return sum(file.stat().st_size for file in Path(str(folder)).rglob("part-*"))


def column_bytes(folder: object, column: str) -> int:
    """Bytes that a matrix takes in the shards of a store."""
    files = Path(str(folder)).rglob("part-*.arrow")
    return sum(pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0).column(column).nbytes for file in files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="one size, one repeat")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that is not installed misses no goal")
    options = parser.parse_args()
    there = {way: needs is None or find_spec(needs) is not None for way, (needs, _, _) in WAYS.items()}
    rows = []
    for size in SIZES[:1] if options.quick else SIZES:
        with tempfile.TemporaryDirectory() as name:
            places = write(Path(name), size)
            share = bytes_of(places["store"]) / bytes_of(places["float32_store"])
            matrix = column_bytes(places["store"], "dense16") / column_bytes(places["float32_store"], "dense32")
            seen: dict[str, list[dict[str, float]]] = {way: [] for way, found in there.items() if found}
            for repeat in range(1 if options.quick else 3):
                for way, entries in seen.items():
                    if repeat < 1 or way.startswith("store"):  # the peers take minutes
                        entries.append(once(way, places))
        best = {
            way: {key: statistics.median(entry[key] for entry in entries) for key in ("cpu", "wall", "private")}
            for way, entries in seen.items()
        }
        print(f"\n{size:,} rows of 64 numbers and 8 ids; seconds of CPU (of the wall), private memory")
        for way, entry in best.items():
            print(f"  {way:34s} {entry['cpu']:9.4f} ({entry['wall']:.4f}) {entry['private']:8.1f} MiB")
            rows.append({"rows": size, "way": way, **entry})
        print(f"  bytes on disk, whole rows: {share:.1%} of the float32 store; the numbers alone {matrix:.1%}")
    opened, touched = best["store: open"], best["store: open and touch every byte"]
    checks = [
        {"name": "open, ms of CPU", "value": opened["cpu"] * 1000, "goal": 10, "ok": opened["cpu"] <= 0.010},
        {"name": "open, MiB of private memory", "value": opened["private"], "goal": 5, "ok": opened["private"] < 5},
    ]
    if "pandas: CSV" in best:
        value = best["pandas: CSV"]["cpu"] / touched["cpu"]
        checks.append({"name": "pandas CSV / open and touch", "value": value, "goal": 20, "ok": value >= 20})
    else:
        print("skipped: pandas is not installed (tests/benchmarks/requirements-benchmarks.txt)")
        checks.append({"name": "pandas CSV / open and touch", "value": None, "goal": 20, "ok": options.allow_missing})
    checks.append({"name": "numbers on disk / float32", "value": matrix, "goal": 0.51, "ok": matrix <= 0.51})
    print()
    for check in checks:
        value = "-" if check["value"] is None else f"{check['value']:.3g}"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {value} (goal {check['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "store", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
