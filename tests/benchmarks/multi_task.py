"""Click, cart and order learned together on a synthetic log, each beside the AUC that no model can pass.

The log is drawn from a seed, so the true chance of each outcome of each row is known, and with it the Bayes-optimal
AUC. `MultiTaskModule` with `MMoE` trains on the rows before a cut in time and is measured on those after it:

    python tests/benchmarks/multi_task.py --json --check

Goals, mean of 3 seeds: each AUC within 0.01 of the best; at least 1,000,000 test rows and 100 events a user.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from machine import machine

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import TasksLabel
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.true_probabilities import true_probabilities
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.metrics.auc import AUC
from lightning_mp.models.multi_task import MultiTaskModule
from lightning_mp.networks.mmoe import MMoE

TASKS = ("click", "cart", "order")
GOAL, TEST_ROWS, EVENTS_A_USER = 0.01, 1_000_000, 100
FULL = SyntheticLog(impressions=4_000_000, users=1_000, items=200)
QUICK = SyntheticLog(impressions=300_000, users=100, items=60)
FEATURES = [
    FeatureSpec(name="user_id", kind="id", role="user"),
    FeatureSpec(name="segment", kind="categorical", role="user"),
    FeatureSpec(name="age", kind="numeric", role="user"),
    FeatureSpec(name="spend", kind="numeric", role="user", transform="log1p_zscore"),
    FeatureSpec(name="item_id", kind="id", role="item"),
    FeatureSpec(name="category_id", kind="categorical", role="item"),
    FeatureSpec(name="brand", kind="categorical", role="item"),
    FeatureSpec(name="price", kind="numeric", role="item", transform="log1p_zscore"),
    FeatureSpec(name="device", kind="categorical"),
    FeatureSpec(name="position", kind="categorical"),
    FeatureSpec(name="promotion", kind="numeric", transform="none"),
    FeatureSpec(name="hour", kind="categorical", of="hour"),
]


def one_seed(settings: SyntheticLog, seed: int, *, folder: Path, epochs: int) -> list[dict[str, object]]:
    """A row a task: the module's AUC and the best, on the test part of the log of this seed."""
    drawn = SyntheticLog(impressions=settings.impressions, users=settings.users, items=settings.items, seed=seed)
    outcomes = {task: task for task in TASKS}
    data = RankingDataModule(
        "synthetic",
        store=str(folder / f"store-{seed}"),
        synthetic=drawn,
        columns=Columns(user="user_id", item="item_id", time="event_time", event=EventFlags(flags=outcomes)),
        label=TasksLabel(tasks=TASKS),
        features=FEATURES,
        split=TimeSplit(validation=0.02, test=0.3),
        batch_size=4096,
        seed=seed,
    )
    pl.seed_everything(seed, verbose=False)
    network = partial(MMoE, tasks=TASKS, embedding_dim=8, experts=3, expert_hidden=(64, 32), tower_hidden=(16,))
    module = MultiTaskModule(network, optimizer=partial(torch.optim.AdamW, lr=3e-3), weight_decay=1e-2)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", num_sanity_val_steps=0, **quiet)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.fit(module, datamodule=data)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    (found,) = trainer.test(module, datamodule=data, verbose=False)
    part, made = data.store.load("test"), []
    for place, task in enumerate(TASKS):
        metric = AUC()
        chance = true_probabilities(data.log_path, part.row, event=task)
        metric.update(torch.from_numpy(chance), torch.from_numpy(part.labels[:, place].copy()))
        best, auc = float(metric.compute()), found[f"test_auc_{task}"]
        made.append(
            {"seed": seed, "task": task, "auc": auc, "best": best, "gap": best - auc, "test_rows": len(part),
             "happened": int(part.labels[:, place].sum()), "seconds": wall, "seconds_of_cpu": cpu}
        )  # fmt: skip
        print(f"{seed:5d}  {task:6s}{auc:10.4f}{best:10.4f}{best - auc:10.4f}{len(part):12,d}{cpu:12.0f}", flush=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="a small log, whose goals are not those of the full one")
    parser.add_argument(
        "--allow-missing", action="store_true", help="taken for all benchmarks; nothing is missing here"
    )
    parser.add_argument("--seeds", type=int, default=3, help="logs and trainings")
    parser.add_argument("--epochs", type=int, default=3, help="of each training")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*(does not have many workers|LeafSpec).*")
    settings = QUICK if options.quick else FULL
    print(f"{'seed':>5s}  {'task':6s}{'AUC':>10s}{'best':>10s}{'gap':>10s}{'test rows':>12s}{'s of CPU':>12s}")
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for seed in range(options.seeds)
            for row in one_seed(settings, seed, folder=Path(folder), epochs=options.epochs)
        ]
    checks = []
    for task in TASKS:
        gap = statistics.mean(row["gap"] for row in rows if row["task"] == task)
        checks.append(
            {"name": f"best AUC - AUC of {task}, mean of seeds", "value": gap, "goal": GOAL, "ok": gap <= GOAL}
        )
    least, events = min(row["test_rows"] for row in rows), settings.impressions / settings.users
    checks.append({"name": "test rows", "value": least, "goal": TEST_ROWS, "ok": least >= TEST_ROWS})
    checks.append({"name": "events a user", "value": events, "goal": EVENTS_A_USER, "ok": events >= EVENTS_A_USER})
    print()
    for check in checks:
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {check['value']:,.4g} (goal {check['goal']:,g})")
    if options.json:
        print(json.dumps({"benchmark": "multi_task", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
