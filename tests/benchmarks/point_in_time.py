"""The user's click rate in a category over the past 7 days, point in time, beside other engines.

    python tests/benchmarks/point_in_time.py --json --check     # three sizes up to 5.6 M events
    python tests/benchmarks/point_in_time.py --quick

Nine of ten events are impressions, for each of which the rate is asked; the others are clicks. All engines run in one
process, interleaved, on the same Arrow or pandas table in memory, and must give the same impressions and clicks on
every row. Times stand by the hour, so that many are equal and many lie just 7 days apart; only what is strictly
earlier counts. `bare DuckDB` is the RANGE query alone, written by hand. Ours runs once more held to 400 MB; what it
takes then beside the events, its result included, is counted by the allocators of NumPy and Arrow and as mapped pages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import duckdb  # noqa: TID253  the peer itself
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from machine import machine

from lightning_mp.data.history import History
from lightning_mp.data.point_in_time import point_in_time
from lightning_mp.data.point_in_time_replay import Replay

SIZES = (350_000, 1_400_000, 5_600_000)
HOUR_US = 3_600_000_000
WEEK_US = 7 * 24 * HOUR_US
PRIOR = 20.0
MEMORY_MB = 400
HISTORY = History(of="click", per="impression", by=("user", "category"), window="7d", measure="rate", prior=PRIOR)
BARE = f"""
    SELECT position,
      coalesce(sum(is_click) OVER (PARTITION BY "user", category ORDER BY "time"
        RANGE BETWEEN {WEEK_US} PRECEDING AND 1 PRECEDING), 0) AS clicks,
      coalesce(sum(1 - is_click) OVER (PARTITION BY "user", category ORDER BY "time"
        RANGE BETWEEN {WEEK_US} PRECEDING AND 1 PRECEDING), 0) AS impressions
    FROM events
"""
Counts = tuple[np.ndarray, np.ndarray]


def draw(rows: int) -> pa.Table:
    generator = np.random.default_rng(0)
    hours = np.sort(generator.integers(0, 90 * 24, rows))
    return pa.table({
        "user": generator.integers(0, max(rows // 56, 10), rows),
        "category": generator.integers(0, 50, rows),
        "time": hours * HOUR_US + 1_700_000_000_000_000,
        "event": pa.array(["impression", "click"]).take(pa.array((generator.random(rows) < 0.107).astype(int))),
        "row": np.arange(rows),
    })  # fmt: skip


def by_searching(events: pa.Table) -> Counts:
    """Clicks and impressions of every event by two binary searches in the sorted events: the oracle at full size."""
    user, category, moment = (events[name].to_numpy() for name in ("user", "category", "time"))
    clicks = events["event"].combine_chunks().dictionary_encode()
    clicks = clicks.indices.to_numpy() == clicks.dictionary.to_pylist().index("click")
    hour = (moment - moment.min()) // HOUR_US
    wide = 1 << 20
    key = (user * 50 + category) * wide + hour + 1024
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    until = np.searchsorted(ordered, key, side="left")
    start = np.searchsorted(ordered, np.maximum(key - 7 * 24, key - key % wide), side="left")
    total = np.concatenate([[0], np.cumsum(clicks[order])])
    found = total[until] - total[start]
    return found, until - start - found


def ours(events: pa.Table, asked: np.ndarray, memory_limit: str | None = None) -> np.ndarray:
    made = point_in_time(events, {"ctr_7d": HISTORY}, asked, train_until=2**62, memory_limit=memory_limit)
    return made["ctr_7d"].values


def bare_duckdb(events: pa.Table) -> Counts:
    with duckdb.connect() as connection:
        is_click = pc.equal(events["event"], "click").cast(pa.int8())
        table = events.select(["user", "category", "time"]).append_column("is_click", is_click)
        connection.register("events", table.append_column("position", events["row"]))
        found = pa.table(connection.sql(BARE))
    clicks, impressions = np.empty(len(events), dtype=np.int64), np.empty(len(events), dtype=np.int64)
    place = found["position"].to_numpy()
    clicks[place] = found["clicks"].cast(pa.int64()).to_numpy()
    impressions[place] = found["impressions"].cast(pa.int64()).to_numpy()
    return clicks, impressions


def polars_rolling(events: pa.Table) -> Counts:
    import polars

    frame = polars.from_arrow(events.select(["user", "category", "time", "event", "row"])).with_columns(
        (polars.col("event") == "click").cast(polars.Int64).alias("click"),
        polars.from_epoch("time", time_unit="us"),
    )
    sums = frame.rolling(index_column="time", period="7d", closed="left", group_by=["user", "category"]).agg(
        polars.col("click").sum().alias("clicks"), (1 - polars.col("click")).sum().alias("impressions")
    )
    # Its rows come group by group, within a group in the order they had: so do these.
    place = frame.select("user", "category", "time", "row").sort(["user", "category"], maintain_order=True)["row"]
    sums = sums.sort(["user", "category"], maintain_order=True)
    clicks, impressions = np.empty(len(events), dtype=np.int64), np.empty(len(events), dtype=np.int64)
    clicks[place.to_numpy()] = sums["clicks"].to_numpy()
    impressions[place.to_numpy()] = sums["impressions"].to_numpy()
    return clicks, impressions


def pandas_merge_asof(events: pa.Table) -> Counts:
    import pandas

    frame = pandas.DataFrame({name: events[name].to_numpy() for name in ("user", "category", "time", "row")})
    frame["click"] = pc.equal(events["event"], "click").to_numpy().astype(np.int64)
    keys = ["user", "category"]
    groups = frame.groupby(keys)
    frame["clicks"] = groups["click"].cumsum()
    frame["events"] = groups.cumcount() + 1
    right = frame[[*keys, "time", "clicks", "events"]]
    at = frame[[*keys, "time", "row"]]
    now = pandas.merge_asof(at, right, on="time", by=keys, allow_exact_matches=False)
    before = pandas.merge_asof(
        at.assign(time=at["time"] - WEEK_US), right, on="time", by=keys, allow_exact_matches=False
    )
    clicks = (now["clicks"].fillna(0) - before["clicks"].fillna(0)).to_numpy().astype(np.int64)
    seen = (now["events"].fillna(0) - before["events"].fillna(0)).to_numpy().astype(np.int64)
    return clicks, seen - clicks


def timed(run: Callable[[], object]) -> tuple[float, float, object]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = run()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def memory_mb(run: Callable[[], object]) -> float:
    """Most that NumPy and Arrow held at once, and most that was mapped from files, beside what there was before."""
    arrow, before, peak, done = pa.default_memory_pool(), mapped_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], mapped_mb() - before)

    watching = threading.Thread(target=watch)
    pa.set_memory_pool(pa.system_memory_pool())  # one that nothing used before: its peak is this run's
    tracemalloc.start()
    watching.start()
    try:
        run()
        return (tracemalloc.get_traced_memory()[1] + pa.system_memory_pool().max_memory()) / 1e6 + peak[0]
    finally:
        done.set()
        watching.join()
        tracemalloc.stop()
        pa.set_memory_pool(arrow)


def mapped_mb() -> float:
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssFile", "RssShmem"))) * 1024 / 1e6


def measure(rows: int, repeats: int) -> list[dict[str, object]]:
    events = draw(rows)
    asked = np.flatnonzero(pc.equal(events["event"], "impression").to_numpy())
    clicks, impressions = by_searching(events)
    mean = (rows - len(asked)) / len(asked)
    wanted = (clicks[asked] + PRIOR * mean) / (impressions[asked] + PRIOR)
    replay = Replay(events)
    for row in np.random.default_rng(1).choice(asked, 20).tolist():  # the oracle itself, against the definition
        place = int(np.searchsorted(asked, row))
        assert np.isclose(replay.value(HISTORY, row, mean), wanted[place], rtol=1e-12)
    engines: dict[str, Callable[[], object]] = {
        "lightning-mp": lambda: ours(events, asked),
        "bare DuckDB": lambda: bare_duckdb(events),
    }
    for name, module, run in (
        ("polars rolling", "polars", polars_rolling),
        ("pandas merge_asof", "pandas", pandas_merge_asof),
    ):
        try:
            __import__(module)
        except ImportError:
            print(f"skipped: {name} ({module} is not installed)", file=sys.stderr)
            continue
        engines[name] = lambda run=run: run(events)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    equal: dict[str, bool] = dict.fromkeys(engines, True)
    for _ in range(repeats):
        for name, run in engines.items():
            wall, cpu, found = timed(run)
            times[name].append((wall, cpu))
            if name == "lightning-mp":
                equal[name] &= bool(np.allclose(found, wanted, rtol=1e-12))
            else:
                equal[name] &= np.array_equal(found[0], clicks) and np.array_equal(found[1], impressions)
    results = [
        {
            "engine": name,
            "events": rows,
            "wall_s": statistics.median(wall for wall, _ in spans),
            "cpu_s": statistics.median(cpu for _, cpu in spans),
            "equal": equal[name],
        }
        for name, spans in times.items()
    ]
    limit = f"{MEMORY_MB}MB"
    wall, cpu, found = timed(lambda: ours(events, asked, limit))
    same = bool(np.allclose(found, wanted, rtol=1e-12))
    results.append({
        "engine": f"lightning-mp in {MEMORY_MB} MB", "events": rows, "wall_s": wall, "cpu_s": cpu, "equal": same,
        "memory_mb": memory_mb(lambda: ours(events, asked, limit)),
    })  # fmt: skip
    return results


def checks(results: list[dict[str, object]], allow_missing: bool) -> list[dict[str, object]]:
    largest = max(row["events"] for row in results)
    found = {row["engine"]: row for row in results if row["events"] == largest}
    own = found["lightning-mp"]["cpu_s"]
    made = [
        {"name": f"{row['engine']} equal on every row, {row['events']:,} events", "value": row["equal"], "goal": True,
         "ok": row["equal"]}
        for row in results if row["engine"].startswith("lightning-mp")
    ]  # fmt: skip
    memory = found[f"lightning-mp in {MEMORY_MB} MB"]["memory_mb"]
    made.append({"name": f"MB beside the events, {largest:,} of them", "value": round(memory, 1), "goal": MEMORY_MB,
                 "ok": memory <= MEMORY_MB})  # fmt: skip
    for name, peer, goal, ours_over in (
        ("CPU time over the bare DuckDB query's", "bare DuckDB", 1.2, True),
        ("CPU time of pandas merge_asof over ours", "pandas merge_asof", 5.0, False),
    ):
        if peer not in found:
            made.append({"name": name, "value": None, "goal": goal, "ok": allow_missing})
            continue
        other = found[peer]["cpu_s"]
        value = own / other if ours_over else other / own
        made.append(
            {"name": name, "value": round(value, 3), "goal": goal, "ok": value <= goal if ours_over else value >= goal}
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="one small size, once")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that is not installed is no miss")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    results = []
    for rows in (100_000,) if options.quick else SIZES:
        results += measure(rows, 1 if options.quick else options.repeats)
    made = checks(results, options.allow_missing)
    print(f"{'engine':24} {'events':>10} {'wall s':>8} {'CPU s':>8}  equal on every row")
    for row in results:
        equal = "yes" if row["equal"] else "NO"
        print(f"{row['engine']:24} {row['events']:>10,} {row['wall_s']:>8.2f} {row['cpu_s']:>8.2f}  {equal}")
    for check in made:
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {check['value']} (goal {check['goal']})")
    if options.json:
        record = {"benchmark": "point_in_time", "machine": machine(), "checks": made, "rows": results}
        print(json.dumps(record))
    return int(options.check and not all(check["ok"] for check in made))


if __name__ == "__main__":
    sys.exit(main())
