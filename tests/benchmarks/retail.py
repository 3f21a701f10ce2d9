"""A grocery's purchases: what will a household buy next, and does anything beat what it always bought?

    python tests/benchmarks/retail.py --json --check
    python tests/benchmarks/retail.py --quick          # baselines alone, seconds

Complete Journey (CC0), 75,000 purchases of 2017 by 2,377 households, as kinds of product; all kinds are ranked for
each household from what it bought before 2017-11-01, and relevant is what it bought afterwards. Households and kinds
that came up only afterwards are left out, as in the figures to reach. The 500 neighbours and the half-life of 240 days
were chosen on a split of the earlier purchases at 2017-09-01.
The data lies beside the checkout, in ../shared/data; where it does not, the benchmark says so and skips.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import machine
from ml100k_data import Ratings

from lightning_mp.baselines.ease import ease
from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.baselines.item_knn import item_knn
from lightning_mp.baselines.markov import markov
from lightning_mp.baselines.own_frequency import own_frequency
from lightning_mp.baselines.popularity import popularity
from lightning_mp.baselines.recency_weights import recency_weights
from lightning_mp.metrics.full_ranking import full_ranking
from lightning_mp.metrics.paired_bootstrap import paired_bootstrap
from lightning_mp.metrics.row_slices import row_slices
from lightning_mp.metrics.user_metrics import UserMetrics

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "complete_journey"
DAY = 86_400_000_000
REACHED = {"popularity": 0.1153, "own frequency": 0.1358, "item-kNN": 0.1400}
"""NDCG@10 measured elsewhere with the same split and the same lists."""
Scorer = Callable[[np.ndarray], np.ndarray]


def purchases(folder: Path) -> Ratings:
    """Rows with a known kind of product; households and kinds as codes."""
    rows = pq.read_table(folder / "transactions.parquet")
    products = pq.read_table(folder / "products.parquet", columns=["product_id", "product_type"])
    kinds = dict(zip(*(column.to_pylist() for column in products.columns), strict=True))
    kind = np.array([kinds.get(key) or "" for key in rows["product_id"].to_pylist()])
    known = kind != ""
    _, item = np.unique(kind[known], return_inverse=True)
    _, user = np.unique(np.array(rows["household_id"].to_pylist())[known], return_inverse=True)
    moment = rows["transaction_timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()[known]
    return Ratings(user, item, np.ones(len(user)), moment, int(user.max()) + 1, int(item.max()) + 1)


def split_at(data: Ratings, *date: int) -> tuple[Ratings, Ratings]:
    cut = int(datetime(*date, tzinfo=UTC).timestamp() * 1_000_000)
    train, test = (data.take(np.flatnonzero(mask)) for mask in (data.time < cut, data.time >= cut))
    known = np.isin(test.user, train.user) & np.isin(test.item, train.item)
    return train, test.take(np.flatnonzero(known))


def ways(train: Ratings) -> dict[str, Callable[[], Scorer]]:
    sizes = {"users": train.users, "items": train.items}
    nobody, every = np.zeros(0, np.int64), np.arange(train.items)
    faded = recency_weights(train.user, train.time, half_life=240 * DAY)

    def popular(window: int | None = None) -> HistoryScorer:
        scores = popularity(train.item, every, train_time=train.time, window=window)
        return HistoryScorer(history=interaction_matrix(nobody, nobody, **sizes), otherwise=scores)

    def neighbours(weight: np.ndarray) -> HistoryScorer:
        return item_knn(train.user, train.item, **sizes, neighbours=500, weight=weight, count_itself=True)

    return {
        "popularity": popular,
        "popularity, 60 days": lambda: popular(60 * DAY),
        "own frequency": lambda: own_frequency(train.user, train.item, **sizes),
        "item-kNN": lambda: neighbours(np.ones(len(train.user))),
        "item-kNN, half-life of 240 days": lambda: neighbours(faded),
        "Markov": lambda: markov(train.user, train.item, train.time, **sizes),
        "EASE": lambda: ease(train.user, train.item, **sizes),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="baselines alone")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the Parquet files")
    options = parser.parse_args()
    if not (options.data / "transactions.parquet").is_file():
        print("skipped: the purchases of Complete Journey are not there (--data FOLDER)")
        return 0
    train, test = split_at(purchases(options.data), 2017, 11, 1)
    sizes = {"users": train.users, "items": train.items}
    relevant = interaction_matrix(test.user, test.item, **sizes)
    relevant.data[:] = 1
    every = np.arange(train.items)
    slices = row_slices(train.user, train.item, np.zeros_like(every), every)
    masks = {name: slices[name] for name in ("head items", "tail items")}
    made = ways(train)
    if not options.quick:
        from ml100k_modules import two_tower

        made["two-tower"] = lambda: two_tower(train, log_q=True, seed=0)
    print("NDCG@10, hit rate@10, NDCG@10 of head and of tail kinds, CPU seconds to fit and rank")
    rows, kept = [], {}
    for name, make in made.items():
        start = time.process_time()
        kept[name] = full_ranking(make(), relevant, k=10, item_slices=masks)
        rows.append(line(name, kept[name], time.process_time() - start))
    checks = []
    score = {row["way"]: row["ndcg"] for row in rows}
    for name, goal in REACHED.items():
        checks.append(
            {"name": f"{name}, NDCG@10", "value": score[name], "goal": goal, "ok": score[name] >= goal - 5e-5}
        )
    best = max(score, key=lambda name: score[name])
    other = max((name for name in score if "kNN" not in name), key=lambda name: score[name])
    found = paired_bootstrap(kept[best].ndcg, kept[other].ndcg)
    difference = {"ours": best, "theirs": other, "mean": found.mean, "low": found.low, "high": found.high}
    if "two-tower" in score and best != "two-tower":
        print(f"a baseline wins: {best} {score[best]:.4f}, two-tower {score['two-tower']:.4f}")
    print(f"{best} less {other}: {found.mean:+.4f} (95 % between {found.low:+.4f} and {found.high:+.4f})\n")
    for check in checks:
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {check['value']:.4f} (goal {check['goal']:.4f})")
    if options.json:
        result = {
            "benchmark": "retail",
            "machine": machine(),
            "checks": checks,
            "rows": rows,
            "differences": [difference],
        }
        print(json.dumps(result))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


def line(name: str, result: UserMetrics, cpu: float) -> dict:
    means = result.mean()
    head, tail = (result.slices[part].mean()["ndcg"] for part in ("head items", "tail items"))
    print(f"  {name:32s} {means['ndcg']:.4f} {means['hit_rate']:.4f} {head:.4f} {tail:.4f} {cpu:8.1f} s")
    return {"way": name, **means, "ndcg_head": head, "ndcg_tail": tail, "users": len(result.users), "cpu": cpu}


if __name__ == "__main__":
    sys.exit(main())
