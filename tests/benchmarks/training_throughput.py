"""Rows a second of training DeepFM, beside other libraries that train it.

    python tests/benchmarks/training_throughput.py --json --check
    python tests/benchmarks/training_throughput.py --quick

26 categorical features of 10,000 values and 13 numbers, batch 4096, embeddings of 16, hidden layers of 256 and 128, two
threads. Ours is what a user runs: `RankingModule(DeepFM)` with `RowWiseAdagrad` in a Lightning Trainer, batches from a
feature store. The others train by their own loops, loaders and Adam, in float32, for none has mixed precision; the loss
terms that they add by themselves are off. FuxiCTR's wheel has no models: its DeepFM is rebuilt from its layers, as in
its model zoo. Timed is one epoch, all taking turns; each repeat gives a ratio, the check is their median. CPU seconds
stand beside: the clock on the wall counts what neighbours on the machine do.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import torch
from machine import machine
from numpy.typing import NDArray

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.deep_fm import DeepFM
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad
from lightning_mp.schema import Feature, FeatureSchema

INDEXED, NUMBERS, VALUES, BATCH, WIDTH, HIDDEN = 26, 13, 10_000, 4096, 16, (256, 128)
GOALS = {
    ("lightning-mp", "FuxiCTR"): 1.1,
    ("lightning-mp", "DeepCTR-Torch"): 1.3,
    ("lightning-mp", "torch-rechub"): 2.0,
    ("lightning-mp bf16", "FuxiCTR"): 1.4,
    ("lightning-mp bf16", "DeepCTR-Torch"): 1.8,
    ("lightning-mp bf16", "torch-rechub"): 2.5,
}
Columns = dict[str, NDArray[np.generic]]
Seconds = tuple[float, float]
Run = Callable[[], Seconds]


def drawn(rows: int) -> Columns:
    draw = np.random.default_rng(0)
    ids = {f"c{i}": draw.integers(1, VALUES, rows) for i in range(INDEXED)}
    numbers = {f"d{i}": draw.normal(size=rows).astype(np.float32) for i in range(NUMBERS)}
    return {**ids, **numbers, "click": (draw.random(rows) < 0.3).astype(np.float32)}


def timed(work: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


class Epoch(pl.Callback):
    """Both clocks over the epoch."""

    seconds: Seconds
    begin: Seconds

    def on_train_epoch_start(self, *_: object) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def on_train_epoch_end(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]


def ours(columns: Columns, folder: Path) -> dict[str, Run]:
    ids = [
        Feature(
            name=f"c{i}", kind="categorical", role="context", source_dtype="int64", stored_dtype="int32",
            vocabulary_size=VALUES,
        )
        for i in range(INDEXED)
    ]  # fmt: skip
    numbers = [(f"d{i}", "context") for i in range(NUMBERS)]
    rest = [
        Feature(name=name, kind="numeric", role=role, source_dtype="float", stored_dtype="float32")
        for name, role in [*numbers, ("click", "label")]
    ]
    FeatureStore(folder).write({"train": pa.table(columns)}, schema=FeatureSchema(features=(*ids, *rest)))

    def run(precision: str) -> Seconds:
        epoch = Epoch()
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, precision=precision, callbacks=[epoch], limit_val_batches=0,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        network = partial(DeepFM, embedding_dim=WIDTH, hidden=HIDDEN, sparse=True)
        module = RankingModule(network, optimizer=partial(RowWiseAdagrad, lr=0.02))
        trainer.fit(module, RankingDataModule(store=str(folder), batch_size=BATCH))
        return epoch.seconds

    return {"lightning-mp": partial(run, "32-true"), "lightning-mp bf16": partial(run, "bf16-mixed")}


def deepctr(columns: Columns, _: Path) -> dict[str, Run]:
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM as Peer

    features = [SparseFeat(f"c{i}", VALUES, embedding_dim=WIDTH) for i in range(INDEXED)]
    features += [DenseFeat(f"d{i}", 1) for i in range(NUMBERS)]
    inputs = {name: column for name, column in columns.items() if name != "click"}

    def run() -> Seconds:
        model = Peer(features, features, dnn_hidden_units=HIDDEN, l2_reg_linear=0.0, l2_reg_embedding=0.0)
        model.compile("adam", "binary_crossentropy")
        return timed(lambda: model.fit(dict(inputs), columns["click"], batch_size=BATCH, epochs=1, verbose=0))

    return {"DeepCTR-Torch": run}


def rechub(columns: Columns, _: Path) -> dict[str, Run]:
    from torch_rechub.basic.features import DenseFeature, SparseFeature
    from torch_rechub.models.ranking import DeepFM as Peer
    from torch_rechub.trainers import CTRTrainer
    from torch_rechub.utils.data import DataGenerator

    indexed = [SparseFeature(f"c{i}", vocab_size=VALUES, embed_dim=WIDTH) for i in range(INDEXED)]
    numbers = [DenseFeature(f"d{i}") for i in range(NUMBERS)]
    inputs = {name: column for name, column in columns.items() if name != "click"}

    def run() -> Seconds:
        model = Peer(numbers + indexed, indexed, mlp_params={"dims": list(HIDDEN), "dropout": 0.0})
        trainer = CTRTrainer(model, optimizer_params={"lr": 1e-3}, n_epoch=1)
        rows = slice(0, BATCH)  # its generator wants three parts
        few = {name: column[rows] for name, column in inputs.items()}
        loader, _, _ = DataGenerator(inputs, columns["click"]).generate_dataloader(
            x_val=few, y_val=columns["click"][rows], x_test=few, y_test=columns["click"][rows], batch_size=BATCH
        )
        return timed(lambda: trainer.train_one_epoch(loader))

    return {"torch-rechub": run}


def fuxictr(columns: Columns, folder: Path) -> dict[str, Run]:
    from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
    from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    names = [name for name in columns if name != "click"]
    places = {name: place for place, name in enumerate([*names, "click"])}
    features = {
        name: {"source": "", "type": "numeric"}
        if name.startswith("d")
        else {"source": "", "type": "categorical", "vocab_size": VALUES, "padding_idx": 0}
        for name in names
    }
    told = SimpleNamespace(
        features=features, labels=["click"], num_fields=len(names), dataset_id="rows", data_dir=str(folder),
        group_id=None, default_emb_dim=WIDTH, get_column_index=places.__getitem__,
        sum_emb_out_dim=lambda: len(names) * WIDTH,
    )  # fmt: skip

    class Peer(BaseModel):
        """DeepFM of FuxiCTR's model zoo."""

        def __init__(self) -> None:
            super().__init__(told, model_id="DeepFM", gpu=-1, verbose=0, model_root=str(folder), metrics=["AUC"])
            self.embedding_layer = FeatureEmbedding(told, WIDTH)
            self.fm = FactorizationMachine(told)
            self.mlp = MLP_Block(
                input_dim=told.sum_emb_out_dim(), output_dim=1, hidden_units=list(HIDDEN), hidden_activations="relu"
            )
            self.compile("adam", "binary_crossentropy", 1e-3)
            self.reset_parameters()

        def forward(self, inputs: object) -> dict[str, torch.Tensor]:
            x = self.get_inputs(inputs)
            embedded = self.embedding_layer(x)
            logit = self.fm(x, embedded) + self.mlp(embedded.flatten(start_dim=1))
            return {"y_pred": self.output_activation(logit)}

    file = folder / "fuxictr.npz"
    folder.mkdir(exist_ok=True)
    np.savez(file, **columns)

    def run() -> Seconds:
        model = Peer()
        model.train()
        model._max_gradient_norm = 10.0
        loader = NpzDataLoader(told, str(file), batch_size=BATCH, shuffle=True, num_workers=0)

        def epoch() -> None:
            for batch in loader:
                model.train_step(batch)

        return timed(epoch)

    return {"FuxiCTR": run}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="10 steps, one repeat")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that is not installed misses no goal")
    parser.add_argument("--rows", type=int, default=204_800, help="of an epoch")
    parser.add_argument("--repeats", type=int, default=5, help="of each way")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    rows, repeats = (10 * BATCH, 1) if options.quick else (options.rows, options.repeats)
    columns = drawn(rows)
    seen: dict[str, list[Seconds]] = {}
    with tempfile.TemporaryDirectory() as name:
        runs: dict[str, Run] = {}
        for make in (ours, fuxictr, deepctr, rechub):
            try:
                runs |= make(columns, Path(name) / make.__name__)
            except ImportError as error:
                print(f"skipped: {error} (tests/benchmarks/requirements-benchmarks.txt)")
        for repeat in range(repeats + 1):  # the first warms up
            for way, run in runs.items():
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    seconds = run()
                if repeat or options.quick:
                    seen.setdefault(way, []).append(seconds)
    print(f"\nDeepFM, {rows:,} rows an epoch, batch {BATCH:,}, {options.threads} threads: thousand rows a second")
    table = []
    for way, pairs in seen.items():
        wall, cpu = (statistics.median(rows / pair[clock] / 1e3 for pair in pairs) for clock in (0, 1))
        print(f"  {way:20s} {wall:8.1f} of the wall {cpu:8.1f} of CPU")
        table.append({"way": way, "krows_per_second": wall, "krows_per_cpu_second": cpu, "seconds": pairs})
    checks = []
    for (way, peer), goal in GOALS.items():
        if peer not in seen:
            checks.append({"name": f"{way} / {peer}", "value": None, "goal": goal, "ok": options.allow_missing})
            continue
        pairs = list(zip(seen[way], seen[peer], strict=True))
        value, of_cpu = (statistics.median(theirs[clock] / own[clock] for own, theirs in pairs) for clock in (0, 1))
        checks.append({"name": f"{way} / {peer}", "value": value, "goal": goal, "ok": value >= goal, "cpu": of_cpu})
    print()
    for check in checks:
        value = "-" if check["value"] is None else f"{check['value']:.2f} ({check['cpu']:.2f} of CPU)"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {value} (goal {check['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "training_throughput", "machine": machine(), "checks": checks, "rows": table}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
