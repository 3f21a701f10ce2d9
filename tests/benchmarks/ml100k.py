"""MovieLens 100K: every baseline and module beside the published table, and what each costs.

    python tests/benchmarks/ml100k.py --json --check
    python tests/benchmarks/ml100k.py --quick          # baselines alone, seconds

Three tasks. *Top 10*: the split and the metrics of Microsoft Recommenders' table (75/25, seed 42, all films that a user
has not rated are ranked). *Next film*: each user's last rating is left out, all other films are ranked. *Four stars*: a
split at one moment, AUC of a rating of 4 or more. Modules are trained with three seeds and their means stand here; the
intervals are of the first seed, over users.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import machine
from ml100k_data import CACHE, Ratings, leave_one_out, microsoft_split, ratings

from lightning_mp.baselines.ease import ease
from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.baselines.item_knn import item_knn
from lightning_mp.baselines.markov import markov
from lightning_mp.baselines.popularity import popularity
from lightning_mp.baselines.recency_weights import recency_weights
from lightning_mp.metrics.full_ranking import full_ranking
from lightning_mp.metrics.paired_bootstrap import paired_bootstrap
from lightning_mp.metrics.user_metrics import UserMetrics

PUBLISHED = {  # Microsoft Recommenders, README, MovieLens 100k, k = 10: nDCG, precision, recall
    "BiVAE": (0.4751, 0.4118, 0.2191),
    "BPR": (0.4420, 0.3882, 0.2125),
    "LightGCN": (0.4198, 0.3796, 0.1443),
    "NCF": (0.3961, 0.3473, 0.1808),
    "SAR": (0.3825, 0.3308, 0.1764),
    "embdotbias": (0.1178, None, None),
    "SVD": (0.0959, None, None),
    "Spark ALS": (0.0442, None, None),
}
SEEDS = (0, 1, 2)
Scorer = Callable[[np.ndarray], np.ndarray]


def baselines(train: Ratings) -> dict[str, Callable[[], Scorer]]:
    sizes = {"users": train.users, "items": train.items}
    nobody, every = np.zeros(0, np.int64), np.arange(train.items)

    def recent(per_step: float) -> HistoryScorer:
        weight = recency_weights(train.user, train.time, per_step=per_step)
        return item_knn(train.user, train.item, **sizes, neighbours=200, weight=weight)

    return {
        "popularity": lambda: HistoryScorer(
            history=interaction_matrix(nobody, nobody, **sizes), otherwise=popularity(train.item, every)
        ),
        "item-kNN": lambda: item_knn(train.user, train.item, **sizes),
        "item-kNN, 200 neighbours": lambda: item_knn(train.user, train.item, **sizes, neighbours=200),
        "item-kNN, latest first (0.8 a step)": lambda: recent(0.8),
        "Markov": lambda: markov(train.user, train.item, train.time, **sizes),
        "EASE": lambda: ease(train.user, train.item, **sizes),
    }


def ranked(score: Scorer, train: Ratings, test: Ratings) -> UserMetrics:
    sizes = {"users": train.users, "items": train.items}
    relevant, seen = (interaction_matrix(part.user, part.item, **sizes) for part in (test, train))
    return full_ranking(score, relevant, seen=seen, k=10)


def compared(
    task: str, split: tuple[Ratings, Ratings], modules: dict[str, Callable[[int], Scorer]], seeds: tuple[int, ...]
) -> tuple[list[dict], dict[str, UserMetrics]]:
    """A row a way: means over the users, and over the seeds where there are several."""
    train, test = split
    ways: dict[str, list[Callable[[], Scorer]]] = {name: [make] for name, make in baselines(train).items()}
    ways |= {name: [lambda make=make, seed=seed: make(seed) for seed in seeds] for name, make in modules.items()}
    rows, kept = [], {}
    for name, makes in ways.items():
        start = time.process_time()
        results = [ranked(make(), train, test) for make in makes]
        cpu = (time.process_time() - start) / len(makes)
        means = [result.mean() for result in results]
        row = {key: float(np.mean([mean[key] for mean in means])) for key in means[0]}
        spread = float(np.ptp([mean["ndcg"] for mean in means]))
        rows.append({"task": task, "way": name, **row, "cpu": cpu, "seeds": len(makes), "ndcg_range": spread})
        kept[name] = results[0]
        show(rows[-1])
    return rows, kept


def show(row: dict) -> None:
    spread = f" (range of {row['seeds']} seeds {row['ndcg_range']:.4f})" if row["seeds"] > 1 else ""
    print(
        f"  {row['way']:36s} {row['ndcg']:.4f} {row['precision']:.4f} {row['recall']:.4f} {row['mrr']:.4f}"
        f" {row['cpu']:8.1f} s{spread}"
    )


def doubt(kept: dict[str, UserMetrics], ours: str, theirs: str) -> dict:
    found = paired_bootstrap(kept[ours].ndcg, kept[theirs].ndcg)
    print(f"  {ours} less {theirs}: {found.mean:+.4f} (95 % between {found.low:+.4f} and {found.high:+.4f})")
    return {"ours": ours, "theirs": theirs, "mean": found.mean, "low": found.low, "high": found.high}


def at_least(name: str, value: float | None, goal: float) -> dict:
    return {"name": name, "value": value, "goal": goal, "ok": value is not None and value >= goal}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="baselines alone")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="seeds of the modules")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the ratings are kept")
    options = parser.parse_args()
    try:
        data = ratings(options.cache)
    except RuntimeError as error:
        print(f"skipped: {error}")
        return 0
    seeds = SEEDS[: options.seeds]
    top: dict[str, Callable[[int], Scorer]] = {}
    following: dict[str, Callable[[int], Scorer]] = {}
    first, second = microsoft_split(data), leave_one_out(data)
    if not options.quick:
        from ml100k_modules import sasrec, two_tower

        top["two-tower"] = lambda seed: two_tower(first[0], log_q=True, seed=seed)
        top["two-tower without logQ"] = lambda seed: two_tower(first[0], log_q=False, seed=seed)
        following["SASRec"] = lambda seed: sasrec(second[0], seed=seed)
    print("top 10: nDCG@10, precision@10, recall@10, MRR, CPU seconds to fit and rank")
    rows, kept = compared("top 10", first, top, seeds)
    for name, (ndcg, precision, recall) in PUBLISHED.items():
        rest = "" if precision is None else f" {precision:.4f} {recall:.4f}"
        print(f"  {name + ' (published)':36s} {ndcg:.4f}{rest}")
        published = {"ndcg": ndcg, "precision": precision, "recall": recall}
        rows.append({"task": "top 10", "way": f"{name} (published)", **published})
    score = {row["way"]: row["ndcg"] for row in rows}
    checks = [at_least("EASE, nDCG@10", score["EASE"], 0.479)]
    doubts = []
    if not options.quick:
        with_q, without = score["two-tower"], score["two-tower without logQ"]
        checks.append(at_least("two-tower with logQ, nDCG@10", with_q, 0.42))
        fell = {"name": "two-tower without logQ, nDCG@10 below", "value": without, "goal": with_q - 0.05}
        checks.append({**fell, "ok": without < with_q - 0.05})
        doubts.append(doubt(kept, "two-tower", "EASE"))
    print("next film: NDCG@10, precision@10, hit rate@10, MRR, CPU seconds")
    more, kept = compared("next film", second, following, seeds)
    rows += more
    if not options.quick:
        best = max((row for row in more if row["way"] != "SASRec"), key=lambda row: row["ndcg"])["way"]
        doubts.append(doubt(kept, "SASRec", best))
        rows += four_stars(seeds, checks)
    print()
    for check in checks:
        value = "-" if check["value"] is None else f"{check['value']:.4f}"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {value} (goal {check['goal']:.4g})")
    if options.json:
        result = {"benchmark": "ml100k", "machine": machine(), "checks": checks, "rows": rows, "differences": doubts}
        print(json.dumps(result))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


def four_stars(seeds: tuple[int, ...], checks: list[dict]) -> list[dict]:
    from ml100k_modules import ranking

    tables = [ranking(seed=seed) for seed in seeds]
    print("four stars, split at one moment: AUC, AUC in users, log loss")
    rows = []
    for line in tables[0].rows:
        same = [table.row(line.name) for table in tables]
        mean = {key: average([getattr(row, key) for row in same]) for key in ("auc", "user_auc", "log_loss")}
        way = "DCNv2, what was known at the moment" if line.name == "model" else line.name
        rows.append({"task": "four stars", "way": way, **mean, "seeds": len(seeds)})
        print(f"  {way:36s} " + " ".join("     -" if value is None else f"{value:.4f}" for value in mean.values()))
    for note in tables[0].notes:
        print(f"  {note}")
    checks.append(at_least("ranking AUC on the global time split", rows[0]["auc"], 0.70))
    return rows


def average(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


if __name__ == "__main__":
    sys.exit(main())
