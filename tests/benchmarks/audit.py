"""The audit of a Parquet file to JSON and HTML, beside other profilers and the bare decode of the same bytes.

    python tests/benchmarks/audit.py --json --check                 # 2 M x 64 and 20 M x 20
    python tests/benchmarks/audit.py --peers path/to/python         # peers from another environment

Each way runs in a process of its own, one after the other, and reports wall time, CPU seconds over all threads, and
the peak of its resident memory. `decode` reads every column with pyarrow and does nothing else: the limit. ydata-
profiling is run minimal and its report written as HTML; its own Parquet read is inside, as ours is. Its time at 2 M
rows is beyond most patience: it is measured whole unless `--quick`. polars and DuckDB give counts, means, deviations
and quantiles, and nothing about float16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = {
    "decode": """
import pyarrow.parquet as pq
for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(1 << 17): pass
""",
    "audit": """
from lightning_mp import audit
report = audit(path)
open(path + '.html', 'w').write(report.to_html())
open(path + '.json', 'w').write(report.to_json())
""",
    "duckdb SUMMARIZE": """
import duckdb
duckdb.sql(f"SUMMARIZE SELECT * FROM read_parquet('{path}')").fetchall()
""",
    "polars describe": """
import polars
polars.scan_parquet(path).describe()
""",
    "whylogs": """
import whylogs, pandas
whylogs.log(pandas.read_parquet(path)).view().to_pandas()
""",
    "ydata-profiling minimal": """
import pandas
from ydata_profiling import ProfileReport
ProfileReport(pandas.read_parquet(path), minimal=True, progress_bar=False).to_file(path + '.ydata.html')
""",
}
SLOW = ("whylogs", "ydata-profiling minimal")
MEMORY_MB = 700


def write(path: Path, rows: int, columns: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, schema = np.random.default_rng(0), pa.schema([(f"x{i:02d}", pa.float32()) for i in range(columns)])
    kinds = [
        lambda n: draw.normal(size=n), lambda n: draw.lognormal(3, 3, n), lambda n: draw.poisson(20, n),
        lambda n: np.where(draw.random(n) < 0.9, 0, draw.lognormal(3, 1, n)), lambda n: draw.random(n) * 1e-6,
        lambda n: draw.integers(0, 2, n), lambda n: draw.normal(1000, 1, n),
        lambda n: np.round(draw.gamma(2, 30, n), 2),
    ]  # fmt: skip
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, rows, 1 << 18):
            n = min(1 << 18, rows - start)
            table = {f"x{i:02d}": kinds[i % len(kinds)](n).astype(np.float32) for i in range(columns)}
            file.write_table(pa.table(table, schema=schema))


def measured(python: str, way: str, path: Path, limit: float) -> dict[str, float] | None:
    """Wall, CPU and peak memory of a way in a process of its own; `None` where it cannot be imported."""
    code = f"path = {str(path)!r}\n{WAYS[way]}\nimport resource, json\nu = resource.getrusage(resource.RUSAGE_SELF)\n" \
           "print('@@' + json.dumps([u.ru_utime + u.ru_stime, u.ru_maxrss / 1024]))"  # fmt: skip
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"wall": limit, "cpu": 0.0, "mb": 0.0, "timed_out": True}
    wall = time.perf_counter() - start
    line = next((line for line in done.stdout.splitlines() if line.startswith("@@")), None)
    if line is None:
        print(f"  {way}: {(done.stderr or 'no output').strip().splitlines()[-1][:150]}")
        return None
    cpu, mb = json.loads(line[2:])
    return {"wall": wall, "cpu": cpu, "mb": mb}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 when a check is not ok")
    parser.add_argument("--quick", action="store_true", help="200,000 x 64, and nothing slow")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that is not installed misses no goal")
    parser.add_argument("--peers", default=sys.executable, help="interpreter with the peers")
    parser.add_argument("--repeats", type=int, default=3, help="of the quick ways; the median counts")
    parser.add_argument("--sizes", nargs="+", default=["2000000x64", "20000000x20"], help="rows x columns")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a way is stopped")
    options = parser.parse_args(argv)
    from machine import machine

    sizes = [(200_000, 64)] if options.quick else [tuple(map(int, size.split("x"))) for size in options.sizes]
    rows, checks = [], []
    for count, columns in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.parquet"
            write(path, count, columns)
            print(f"{count:,} x {columns}: {path.stat().st_size / 1e6:.0f} MB", flush=True)
            found: dict[str, list[dict[str, float]]] = {}
            quick = [way for way in WAYS if way not in SLOW]
            slow = [] if options.quick or count > 2_000_000 else list(SLOW)
            for way in [*quick * options.repeats, *slow]:
                ours = way in ("audit", "decode")
                one = measured(sys.executable if ours else options.peers, way, path, options.limit)
                if one is not None:
                    found.setdefault(way, []).append(one)
            for way, runs in found.items():  # a way that was stopped took at least its limit
                middle = sorted(runs, key=lambda run: run["wall"])[len(runs) // 2]
                found[way] = [middle]
                rows.append({"rows": count, "columns": columns, "way": way, **middle})
                print(
                    f"  {way:26} {middle['wall']:8.2f} s wall {middle['cpu']:8.2f} s CPU {middle['mb']:7.0f} MB",
                    flush=True,
                )
            where = f"{count:,} x {columns}"
            goals = {"ydata-profiling minimal": 25.0, "duckdb SUMMARIZE": 5.0}
            for peer, goal in goals.items():
                if peer in SLOW and not slow:
                    continue
                name = f"{where}: times faster than {peer}"
                if peer not in found:
                    print(f"  skipped: {peer} is not installed")
                    checks.append({"name": name, "value": None, "goal": goal, "ok": options.allow_missing})
                    continue
                value = found[peer][0]["wall"] / found["audit"][0]["wall"]
                checks.append({"name": name, "value": value, "goal": goal, "ok": value >= goal})
            peak = found["audit"][0]["mb"]
            checks.append(
                {"name": f"{where}: peak memory, MB", "value": peak, "goal": MEMORY_MB, "ok": peak <= MEMORY_MB}
            )
    for check in checks:
        value = "-" if check["value"] is None else f"{check['value']:.3g}"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {value} (goal {check['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "audit", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
