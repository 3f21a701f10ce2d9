"""Kill a training with SIGKILL, resume it, and compare what it ends with to a training that was never killed.

    python tests/faults/kill_resume.py --all    # every batch of two epochs in 12 settings, and the hard cases
    python tests/faults/kill_resume.py --points 24 --seed 1

Each training is a process of its own, forked from one that has everything imported. A training writes down each batch
as it begins; at the end it writes digests of its weights, optimizer, loss scale, learning rate, random generators, and
of the epoch means it logged. All must equal those of the training that ran through, and so must the rows, their order
and the step that each batch was trained at.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision

from lightning_mp.callbacks.random_state import random_state
from lightning_mp.callbacks.resumable_random_state import ResumableRandomState
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import Feature, FeatureSchema

ROWS, BATCH, EPOCHS = 330, 16, 2
BATCHES = -(-ROWS // BATCH)
SETTINGS = list(product((0, 2), (1, 3), ("fp32", "bf16", "fp16")))
SECONDS = 180


@dataclass(frozen=True)
class Case:
    """One training and where it is killed.

    `kills` are numbers of batches, counted from 0 over both epochs, in whose training step the process ends; `"end"` is
    the end of the first epoch. `checkpoints`: `"steps"`, every few steps; `"length"`, at the last batch of an epoch, by
    step; `"epoch"`, after each epoch.
    """

    workers: int
    accumulate: int
    precision: str
    kills: tuple[int | str, ...] = ()
    checkpoints: str = "steps"
    shuffle: str = "global"

    @property
    def steps(self) -> int:
        """Optimizer steps an epoch."""
        return -(-BATCHES // self.accumulate)


class Network(torch.nn.Module):
    """DCNv2 behind batch normalisation: running means that a repeated batch would move."""

    def __init__(self, schema: FeatureSchema) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(schema.dense_width)
        self.network = DCNv2(schema, embedding_dim=4, cross_layers=1, hidden=(8,), dropout=0.3)

    def forward(self, batch):
        return self.network({**batch, "dense": self.norm(batch["dense"].float())})


class Watched(RankingModule):
    """Writes down each batch as it begins, and ends the process where the case says so."""

    folder: Path
    kill: int | str | None = None

    def training_step(self, batch, batch_idx):
        number = self.trainer.current_epoch * BATCHES + batch_idx
        rows = hashlib.sha256(batch["row"].contiguous().numpy().tobytes()).hexdigest()[:16]
        with (self.folder / "batches.txt").open("a") as file:
            file.write(f"{number} {self.trainer.global_step} {rows}\n")
        loss = super().training_step(batch, batch_idx)
        self.log("epoch_loss", loss.detach(), on_step=False, on_epoch=True)
        if number == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    def on_train_epoch_end(self):
        if self.kill == "end" and self.trainer.current_epoch == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Means(Callback):
    """Writes down each epoch's mean loss, once the epoch is over."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "means.txt"

    def on_train_epoch_start(self, trainer, pl_module):
        self._write(trainer)

    def on_train_end(self, trainer, pl_module):
        self._write(trainer)

    def _write(self, trainer):
        if "epoch_loss" in trainer.callback_metrics:
            with self.file.open("a") as file:
                file.write(f"{float(trainer.callback_metrics['epoch_loss']).hex()}\n")


def write_store(path: Path) -> None:
    draw = np.random.default_rng(0)
    number = {"kind": "numeric", "role": "context", "source_dtype": "double"}
    features = [Feature(name=f"x{i}", stored_dtype="float16", **number) for i in range(4)]
    features.append(
        Feature(name="item", kind="id", role="item", source_dtype="int64", stored_dtype="int32", vocabulary_size=9)
    )
    features.append(Feature(name="click", stored_dtype="float32", **{**number, "role": "label"}))
    parts = {}
    for split, rows in {"train": ROWS, "validation": 40}.items():
        columns = {f"x{i}": draw.normal(size=rows) for i in range(4)}
        parts[split] = pa.table(
            {**columns, "item": draw.integers(0, 9, rows), "click": draw.integers(0, 2, rows) * 1.0}
        )
    FeatureStore(path).write(parts, schema=FeatureSchema(features=tuple(features)))


def precision_plugin(name: str) -> list[MixedPrecision]:
    if name == "fp32":
        return []
    if name == "bf16":
        return [MixedPrecision("bf16-mixed", "cpu")]
    return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=7))]


def train(case: Case, store: Path, folder: Path, kill: int | str | None) -> None:
    """Train in this process, from the folder's last checkpoint where there is one, and write down the end."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pl.seed_everything(7, verbose=False)
    every = {"steps": {"every_n_train_steps": 4 if case.accumulate == 1 else 2}}
    every["length"] = {"every_n_train_steps": case.steps}
    every["epoch"] = {"every_n_epochs": 1}
    checkpoint = ModelCheckpoint(folder, save_last=True, enable_version_counter=False, **every[case.checkpoints])
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        accumulate_grad_batches=case.accumulate,
        plugins=precision_plugin(case.precision),
        callbacks=[Means(folder), ResumableRandomState(), checkpoint],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    data = RankingDataModule(store=str(store), batch_size=BATCH, num_workers=case.workers, seed=3, shuffle=case.shuffle)
    module = Watched(Network)
    module.folder, module.kill = folder, kill
    last = folder / "last.ckpt"
    trainer.fit(module, datamodule=data, ckpt_path=str(last) if last.exists() else None)
    optimizer, scaler = trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None)
    end = {
        "weights": module.state_dict(),
        "optimizer": optimizer.state_dict()["state"],
        "learning rate": [group["lr"] for group in optimizer.param_groups],
        "schedule": trainer.lr_scheduler_configs[0].scheduler.last_epoch,
        "loss scale": None if scaler is None else scaler.state_dict(),
        "random generators": random_state(),
        "steps": trainer.global_step,
    }
    (folder / "end.json").write_text(json.dumps({name: digest(value) for name, value in end.items()}))


def digest(value: object) -> str:
    """sha256 of nested dicts, lists, tensors and numbers, bit for bit."""
    total = hashlib.sha256()

    def add(thing: object) -> None:
        if isinstance(thing, dict):
            for key in sorted(thing, key=str):
                total.update(repr(key).encode())
                add(thing[key])
        elif isinstance(thing, list | tuple):
            total.update(f"[{len(thing)}".encode())
            for entry in thing:
                add(entry)
        elif isinstance(thing, torch.Tensor):
            total.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            total.update(thing.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(thing).encode())

    add(value)
    return total.hexdigest()


def in_child(case: Case, store: Path, folder: Path, kill: int | str | None) -> int:
    """Run one training in a forked process; its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            train(case, store, folder, kill)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    limit = time.monotonic() + SECONDS
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > limit:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # workers that the killed process left behind
    return os.waitstatus_to_exitcode(status)


def batches_of(folder: Path) -> list[str]:
    return (folder / "batches.txt").read_text().splitlines() if (folder / "batches.txt").exists() else []


def outcome(case: Case, store: Path, folder: Path) -> dict[str, object]:
    """Train, with the case's kills and a resume after each, to the end.

    Returns:
        Digests by name, the batches in the order that counts, and the epoch means of the last process.
    """
    folder.mkdir()
    counted: list[str] = []
    for kill in (*case.kills, None):
        status = in_child(case, store, folder, kill)
        expected = 0 if kill is None else -signal.SIGKILL
        if status != expected:
            raise RuntimeError(f"{case}: ended with {status}, expected {expected}\n{(folder / 'log.txt').read_text()}")
        found = batches_of(folder)
        (folder / "batches.txt").unlink(missing_ok=True)
        # What the killed process did after its last checkpoint is done again: it counts from there on once.
        first = int(found[0].split()[0]) if found else EPOCHS * BATCHES
        counted = [line for line in counted if int(line.split()[0]) < first] + found
        if kill is not None:
            (folder / "means.txt").unlink(missing_ok=True)
    end = json.loads((folder / "end.json").read_text())
    means = (folder / "means.txt").read_text().splitlines()
    shutil.rmtree(folder)
    return {**end, "batches": counted, "means": means}


def differences(case: Case, ended: dict[str, object], through: dict[str, object]) -> list[str]:
    """Names of what differs from the training that ran through."""
    names = [name for name in through if name not in ("batches", "means") and ended[name] != through[name]]
    if ended["batches"] != through["batches"]:
        names.append("rows, their order or their steps")
    if ended["means"] and through["means"][-len(ended["means"]) :] != ended["means"]:
        names.append("epoch means")
    return names


def all_cases() -> list[Case]:
    cases = []
    for workers, accumulate, precision in SETTINGS:
        case = Case(workers, accumulate, precision)
        cases += [replace(case, kills=(batch,)) for batch in range(EPOCHS * BATCHES)]
    return cases + hard_cases()


def hard_cases() -> list[Case]:
    """Twice in one epoch, at an epoch's end, and with checkpoints at the last batch of each epoch."""
    cases = []
    for workers, accumulate, precision in SETTINGS:
        case = Case(workers, accumulate, precision)
        cases += [
            replace(case, kills=(8, 15)),
            replace(case, kills=(BATCHES + 8, BATCHES + 15)),
            replace(case, kills=(BATCHES, BATCHES + 9, BATCHES + 17)),
            replace(case, kills=("end",)),
            replace(case, kills=("end",), checkpoints="length"),
            replace(case, kills=(BATCHES,), checkpoints="length"),
            replace(case, kills=(BATCHES + 7, BATCHES + 12), checkpoints="length"),
            replace(case, kills=(BATCHES + 7,), checkpoints="epoch"),
            replace(case, kills=(13, BATCHES + 13), shuffle="block"),
        ]
    return cases


def drawn_cases(points: int, seed: int) -> list[Case]:
    """Points drawn from all, a third of them from the hard ones."""
    draw = random.Random(seed)
    hard = draw.sample(hard_cases(), points // 3)
    return draw.sample(all_cases()[: len(SETTINGS) * EPOCHS * BATCHES], points - len(hard)) + hard


def run(cases: list[Case], *, progress: bool = False) -> list[tuple[Case, list[str]]]:
    """What differs in each case; an empty list where nothing does."""
    found, through = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_store(folder / "store")
        for number, case in enumerate(cases):
            key = replace(case, kills=(), checkpoints="steps")
            if key not in through:
                through[key] = outcome(key, folder / "store", folder / f"through-{number}")
                assert len(through[key]["batches"]) == EPOCHS * BATCHES
            ended = outcome(case, folder / "store", folder / f"case-{number}")
            found.append((case, differences(case, ended, through[key])))
            if progress and (found[-1][1] or number % 20 == 19):
                print(f"{number + 1:4d} of {len(cases)}: {case} {found[-1][1] or 'equal'}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every batch of two epochs in every setting")
    parser.add_argument("--hard", action="store_true", help="the hard cases alone")
    parser.add_argument("--points", type=int, default=24, help="points that are drawn when not all are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    options = parser.parse_args()
    cases = all_cases() if options.all else hard_cases() if options.hard else drawn_cases(options.points, options.seed)
    start = time.monotonic()
    found = run(cases, progress=True)
    wrong = [(case, names) for case, names in found if names]
    kills = sum(len(case.kills) for case, _ in found)
    print(f"{len(found)} trainings, {kills} kills, {len(wrong)} differ from the uninterrupted one")
    if options.json:
        checks = [{"name": "trainings that differ", "value": len(wrong), "goal": 0, "ok": not wrong}]
        rows = [{"case": str(case), "differs": names} for case, names in wrong]
        told = {"trainings": len(found), "kills": kills, "seconds": round(time.monotonic() - start)}
        print(json.dumps({"benchmark": "kill_resume", **told, "checks": checks, "rows": rows}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
