"""Stable runs over 60 hostile settings: float16 with the recipe of this package, and with Lightning's 16-mixed.

    python tests/benchmarks/stability.py --json --check       # 60 settings x 3 seeds, two processes of one thread
    python tests/benchmarks/stability.py --quick              # three settings, one seed
    python tests/benchmarks/stability.py --ablation --json    # each cure alone, and all but it

The settings are in `stability_settings.py`, their tables in `stability_table.py`. The module, the optimizer, the order
of rows and the number of steps of a setting are the same in four runs:

* `ours`: real float16, `mixed_precision`, the gate's features, and `KeepInFP32`, `LearningRateWarmup`,
  `GradientClipping`, `NormGuard`;
* `ours32`: the same recipe in float32;
* `plain`: real float16 as `Trainer(precision="16-mixed")` sets it up on a GPU, the table as it stands;
* `plain32`: the same in float32, on the table without its bad rows.

Stable is a run that finishes, whose parameters, buffers and optimizer state are finite, and whose AUC on held-out rows
is at most 1 % below that of its own float32 run. Where that float32 run fails by itself, the pair is listed apart. So
`plain` is judged by what the precision does to it, and not by what float32 could not learn from that table either.
Operations that CUDA's autocast computes in float32 and the CPU's in float16 are computed in float32.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from cuda_autocast import CudaAutocast
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from machine import machine
from stability_settings import LEARNED, SEEDS, WITHIN, Setting, draw
from stability_table import ITEMS, TRAINING, USERS, Numbers, Table, auc, make_table, through_the_gate
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_mp import GradientClipping, KeepInFP32, LearningRateWarmup, NormGuard, mixed_precision

CURES = ("gate", "scaler", "KeepInFP32", "LearningRateWarmup", "GradientClipping", "NormGuard")
IDLE_IN_FLOAT32 = ("scaler", "KeepInFP32", "NormGuard")
GOAL, FEWER_STEPS, QUICK = 0.99, 2.8, (10, 13, 58)
EVALUATIONS = 25
CEILING = 2.0**16
"""Of the loss scale with ours where the clock is fast, and where torch's scaler begins. One that grows every 5 or 10
steps comes back soon to where gradients overflow, and a step is lost each time; not so at the true interval of 200."""
Batch = tuple[Tensor, Tensor, Tensor]


class Ranker(pl.LightningModule):
    """A cross network beside a deep one, as one finds it: nothing in it knows of float16."""

    def __init__(self, setting: Setting, numbers: int) -> None:
        super().__init__()
        self.learning_rate = setting.learning_rate
        self.users, self.items = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        width = 8 + numbers
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(setting.cross_layers))
        norm = {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[setting.norm]
        self.deep = nn.Sequential(
            nn.Linear(width, 64), norm(64), nn.ReLU(), nn.Linear(64, 32), norm(32), nn.ReLU()
        )  # fmt: skip
        self.head = nn.Linear(width + 32, 1)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        with CudaAutocast():
            first = crossed = torch.cat([self.users(ids[:, 0]), self.items(ids[:, 1]), numbers], dim=1)
            for layer in self.cross:
                crossed = first * layer(crossed) + crossed
            logits: Tensor = self.head(torch.cat([crossed, self.deep(first)], dim=1))
            return logits.squeeze(1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        ids, numbers, labels = batch
        return binary_cross_entropy_with_logits(self(ids, numbers), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=1e-4, foreach=True)


class Rows:
    """Batches of the training rows in a drawn order, over and over; some rows may be left out of them."""

    def __init__(self, tensors: Batch, setting: Setting, seed: int, left_out: np.ndarray[Any, Any]) -> None:
        self.tensors, self.setting, self.seed, self.left_out = tensors, setting, seed, left_out

    def __len__(self) -> int:
        return self.setting.steps

    def __iter__(self) -> Iterator[list[Tensor]]:
        random = np.random.default_rng([self.setting.number, self.seed, 1])
        size, order = self.setting.batch_size, np.array([], dtype=np.int64)
        for _ in range(len(self)):
            if len(order) < size:
                order = random.permutation(TRAINING)
            rows, order = order[:size], order[size:]
            kept = torch.from_numpy(rows[~self.left_out[rows]])
            yield [tensor[kept] for tensor in self.tensors]


class Watch(Callback):
    """Held-out AUC as the training goes on, steps that were skipped, and what the state is in the end."""

    def __init__(self, held_out: Batch, every: int | None) -> None:
        self.held_out, self.every = held_out, every
        self.curve: list[tuple[int, float]] = []
        self.taken = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.optimizer = trainer.optimizers[0]
        self.optimizer.register_step_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.taken += 1

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if self.every and trainer.global_step % self.every == 0 and trainer.global_step < trainer.max_steps:
            self.curve.append((trainer.global_step, self.score(trainer, pl_module)))
            # A weight that is not finite stays so, whatever comes: the verdict is known, and time is saved.
            trainer.should_stop = not all(bool(parameter.isfinite().all()) for parameter in pl_module.parameters())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.curve.append((trainer.global_step, self.score(trainer, pl_module)))
        state = [*pl_module.parameters(), *pl_module.buffers()]
        for entry in self.optimizer.state.values():
            state += [value for value in entry.values() if isinstance(value, Tensor)]
        self.finite = all(bool(tensor.isfinite().all()) for tensor in state)
        self.scale = None if trainer.scaler is None else trainer.scaler.get_scale()
        self.skipped = trainer.global_step - self.taken

    def score(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> float:
        ids, numbers, labels = self.held_out
        pl_module.eval()
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            logits = pl_module(ids, numbers).float().double().numpy()
        pl_module.train()
        return auc(logits, labels.numpy())


@lru_cache(maxsize=2)
def tables(setting: Setting, seed: int) -> tuple[Table, Numbers | str]:
    """The table as it stands, and what the gate makes of it, or why it refuses."""
    table = make_table(setting, seed)
    try:
        return table, through_the_gate(table)
    except Exception as error:  # a refusal counts as a run that doesn't finish
        return table, f"{type(error).__name__}: {error}"


def train(setting: Setting, seed: int, *, half: bool, cures: tuple[str, ...], drop_bad: bool = False) -> dict[str, Any]:
    """One run, and what came of it."""
    table, cured = tables(setting, seed)
    numbers = cured if "gate" in cures else table.numbers
    row: dict[str, Any] = {"finished": False, "finite": False, "auc": None, "curve": []}
    if isinstance(numbers, str):
        return {**row, "error": numbers}
    tensors = torch.from_numpy(table.ids), torch.from_numpy(numbers).float(), torch.from_numpy(table.labels)
    held_out = tuple(tensor[TRAINING:] for tensor in tensors)
    clock = setting.clock
    if not half:
        plugin = Precision()
    elif "scaler" not in cures:  # what `precision="16-mixed"` is on a GPU; on a CPU Lightning would make it bfloat16
        scaler = torch.amp.GradScaler("cpu", growth_interval=2000 // clock)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
    elif clock > 1:
        plugin = mixed_precision("16-mixed", "cpu", growth_interval=200 // clock, max_scale=CEILING)
    else:
        plugin = mixed_precision("16-mixed", "cpu", total_steps=setting.steps)
    made = {
        "KeepInFP32": KeepInFP32, "LearningRateWarmup": lambda: LearningRateWarmup(setting.steps // 10),
        "GradientClipping": lambda: GradientClipping(max_norm=0.5), "NormGuard": NormGuard,
    }  # fmt: skip
    watch = Watch(held_out, setting.steps // EVALUATIONS if half else None)
    callbacks = [make() for name, make in made.items() if name in cures]
    begin = time.process_time()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                accelerator="cpu", devices=1, max_steps=setting.steps, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, plugins=[plugin],
                callbacks=[*callbacks, watch], default_root_dir=folder,
            )  # fmt: skip
            torch.manual_seed(1000 * setting.number + seed)
            module = Ranker(setting, numbers.shape[1])
            left_out = table.bad if drop_bad else np.zeros_like(table.bad)
            trainer.fit(module, Rows(tensors, setting, seed, left_out))
    except Exception as error:  # whatever ends a run makes it unstable
        row["error"] = f"{type(error).__name__}: {error}"
    else:
        row |= {
            "finished": True, "finite": watch.finite, "auc": watch.curve[-1][1], "curve": watch.curve,
            "skipped": watch.skipped, "scale": watch.scale,
        }  # fmt: skip
    return {**row, "seconds": time.process_time() - begin}


def arms(ablation: bool) -> dict[str, dict[str, Any]]:
    """The runs of a setting, each behind the float32 run that it is judged by."""
    found: dict[str, dict[str, Any]] = {
        "ours32": {"half": False, "cures": CURES},
        "ours": {"half": True, "cures": CURES, "judge": "ours32"},
        "plain32": {"half": False, "cures": (), "drop_bad": True},
        "plain": {"half": True, "cures": (), "judge": "plain32"},
    }
    some = {f"only {name}": (name,) for name in CURES}
    some |= {f"all but {name}": tuple(cure for cure in CURES if cure != name) for name in CURES}
    for arm, cures in some.items() if ablation else ():
        in_float32 = tuple(cure for cure in cures if cure not in IDLE_IN_FLOAT32)
        same = {"": "plain32", "+".join(cure for cure in CURES if cure not in IDLE_IN_FLOAT32): "ours32"}
        judge = same.get("+".join(in_float32), "float32, " + " and ".join(in_float32))
        found.setdefault(judge, {"half": False, "cures": in_float32, "drop_bad": "gate" not in cures})
        found[arm] = {"half": True, "cures": cures, "judge": judge}
    return found


def learned(run: dict[str, Any]) -> bool:
    return bool(run["finite"] and run["auc"] is not None and run["auc"] >= LEARNED)


def stable(run: dict[str, Any], whole: dict[str, Any]) -> bool:
    return bool(run["finite"] and run["auc"] is not None and run["auc"] >= (1 - WITHIN) * whole["auc"])


def steps_to(run: dict[str, Any], target: float) -> int | None:
    return next((step for step, value in run["curve"] if value >= target), None)


def pair(task: tuple[Setting, int, bool]) -> dict[str, Any]:
    """All runs of a setting and a seed."""
    setting, seed, ablation = task
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    planned = arms(ablation)
    judges = {arm: how.pop("judge", None) for arm, how in planned.items()}
    runs = {arm: train(setting, seed, **how) for arm, how in planned.items()}
    target = (1 - WITHIN) * (runs["ours32"]["auc"] or math.nan)
    row: dict[str, Any] = {"setting": setting.number, "seed": seed, "kinds": setting.kinds}
    for arm, run in runs.items():
        if judges[arm] is not None:
            whole = runs[judges[arm]]
            run["stable"] = stable(run, whole) if learned(whole) else None
        run["steps to target"] = steps_to(run, target)
        del run["curve"]
        row[arm] = {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in run.items()
        }
    return row


def each(tasks: list[tuple[Setting, int, bool]], jobs: int) -> Iterator[dict[str, Any]]:
    """Their results, in the order in which they are done."""
    if jobs == 1:
        yield from map(pair, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(pair, task) for task in tasks]):
            yield done.result()


def share(rows: list[dict[str, Any]], arm: str) -> tuple[int, int]:
    """Stable runs, and those whose float32 run did not fail by itself."""
    judged = [row[arm]["stable"] for row in rows if row[arm]["stable"] is not None]
    return sum(judged), len(judged)


def end(run: dict[str, Any]) -> str:
    """What became of a run."""
    if run["stable"] is None:
        return "float32 fails by itself"
    if run["stable"]:
        return "stable"
    if not run["finished"]:
        return "did not finish"
    if not run["finite"]:
        return "state not finite"
    return "scores not finite" if run["auc"] is None else "AUC too low"


def differences(rows: list[dict[str, Any]], arm: str) -> dict[str, float]:
    """AUC of ours less that of another arm, over the runs in which both learned something."""
    found = [row["ours"]["auc"] - row[arm]["auc"] for row in rows if learned(row["ours"]) and learned(row[arm])]
    return {"median": statistics.median(found), "lowest": min(found), "runs": len(found)} if found else {}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What all runs say together."""
    by_setting = defaultdict(list)
    for row in rows:
        by_setting[row["setting"]].append(row)
    broken = [
        number
        for number, entries in by_setting.items()
        if 2 * sum(entry["plain"]["stable"] is False for entry in entries) > len(entries)
    ]
    steps = [(row["ours"]["steps to target"], row["plain"]["steps to target"]) for row in rows]
    ratios = sorted(plain / ours for ours, plain in steps if ours and plain)
    kinds = sorted({kind for row in rows for kind in row["kinds"]})
    table = {"all": rows, "no bad rows": [row for row in rows if "bad rows" not in row["kinds"]]}
    table |= {kind: [row for row in rows if kind in row["kinds"]] for kind in kinds}
    return {
        "runs": len(rows),
        "settings": len(by_setting),
        "settings that break plain": len(broken),
        "float32 fails by itself": {
            arm: [(row["setting"], row["seed"]) for row in rows if row[arm]["stable"] is None]
            for arm in ("ours", "plain")
        },
        "ours fails": [(row["setting"], row["seed"]) for row in rows if row["ours"]["stable"] is False],
        "ends": {arm: Counter(end(row[arm]) for row in rows) for arm in ("ours", "plain")},
        "AUC, ours less": {arm: differences(rows, arm) for arm in ("ours32", "plain32")},
        "target reached": {
            "ours": sum(ours is not None for ours, _ in steps), "plain": sum(plain is not None for _, plain in steps),
            "both": len(ratios),
        },
        "steps, plain over ours": {
            "median": statistics.median(ratios) if ratios else None,
            "geometric mean": statistics.geometric_mean(ratios) if ratios else None,
        },
        "stable of judged, by kind": {
            kind: {arm: share(entries, arm) for arm in ("ours", "plain")} for kind, entries in table.items()
        },
        "stable of judged, by arm": {
            arm: share(rows, arm) for arm, run in rows[0].items() if isinstance(run, dict) and "stable" in run
        },
    }  # fmt: skip


def main() -> int:
    """Print the tables; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON as the last line")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--quick", action="store_true", help="three settings, one seed")
    parser.add_argument("--ablation", action="store_true", help="each cure alone, and all but it; one seed")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of settings")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", type=Path, help="file of finished pairs: read first, so that a run can be broken off")
    options = parser.parse_args()
    numbers = options.only or (QUICK if options.quick else None)
    settings = [setting for setting in draw() if numbers is None or setting.number in numbers]
    seeds = options.seeds or (SEEDS[:1] if options.quick or options.ablation else SEEDS)
    begin = time.perf_counter()
    tasks = [(setting, seed, options.ablation) for seed in seeds for setting in settings]
    rows = []
    if options.keep and options.keep.exists():
        rows = [json.loads(line) for line in options.keep.read_text(encoding="utf-8").splitlines()]
        done_before = {(row["setting"], row["seed"]) for row in rows}
        tasks = [task for task in tasks if (task[0].number, task[1]) not in done_before]
    for row in each(tasks, options.jobs):
        rows.append(row)
        if options.keep:
            with options.keep.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(row, allow_nan=False) + "\n")
        told = {arm: run.get("stable") for arm, run in row.items() if isinstance(run, dict) and "stable" in run}
        print(f"{row['setting']:3d} {row['seed']} {told}", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: (row["setting"], row["seed"]))
    cpu = sum(run["seconds"] for row in rows for run in row.values() if isinstance(run, dict) and "seconds" in run)
    found = summary(rows)
    # A run that was broken off knows no time on the clock.
    minutes = (time.perf_counter() - begin) / 60 if len(tasks) == len(rows) else None
    found |= {"minutes": minutes, "CPU minutes": cpu / 60}
    print(f"{'':26}{'ours':>16}{'plain':>16}")
    for kind, entry in found["stable of judged, by kind"].items():
        print(f"{kind:26}" + "".join(f"{f'{good} of {judged}':>16}" for good, judged in entry.values()))
    if options.ablation:
        for arm, (good, judged) in found["stable of judged, by arm"].items():
            print(f"{arm:32}{good} of {judged}")
    for name in ("ends", "ours fails", "AUC, ours less", "target reached", "steps, plain over ours", "minutes"):
        print(f"{name}: {found[name]}")
    good, judged = found["stable of judged, by kind"]["all"]["ours"]
    broken, fewer = found["settings that break plain"], found["steps, plain over ours"]["geometric mean"]
    checks = [
        {"name": "share of runs stable with ours", "value": good / max(judged, 1), "goal": GOAL},
        {"name": "share of settings that break plain", "value": broken / len(settings), "goal": 0.5},
        {"name": "steps to the target, plain over ours", "value": fewer, "goal": FEWER_STEPS},
    ]
    for check in checks:
        check["ok"] = check["value"] is not None and check["value"] >= check["goal"]
        value = "nothing to compare" if check["value"] is None else f"{check['value']:.4g}"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {value}, at least {check['goal']:g}")
    if options.json:
        result = {"benchmark": "stability", "machine": machine(), "checks": checks, "summary": found, "rows": rows}
        print(json.dumps(result, allow_nan=False))
    return int(options.check and not all(check["ok"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
