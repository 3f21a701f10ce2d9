"""What the audit's advice is worth: NDCG@10 of the same network on a faulty log, as it is and after the advised cures.

    python tests/benchmarks/audit_cures.py --json --check      # 5 seeds, float16 and bfloat16
    python tests/benchmarks/audit_cures.py --quick

The log has three faults: one user in five has a negative age, spend reaches from 0.01 to 20,000,000, and promotions
burst from 0 to 1,000,000. *Before* hands age, spend, price and promotion to the network as they stand, *after* with
`transform: auto`, which is the audit's advice. Everything else is the same: log, split by time, network, seeds, number
of steps, learning rate. NDCG@10 is the mean over users of the test part with a click, all of whose rows are ranked;
rows whose score is not finite are ranked in random order. The interval is Student's, of the paired differences.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from machine import machine

from lightning_mp import DCNv2, RankingDataModule, RankingModule, audit, mixed_precision
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.data.time_split import TimeSplit

GOAL = 0.03
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
NUMBERS = (("age", "user"), ("spend", "user"), ("price", "item"), ("promotion", "context"))


def features(kind: str) -> list[FeatureSpec]:
    numbers = [FeatureSpec(name=name, kind="numeric", role=role, transform=kind) for name, role in NUMBERS]
    words = [
        ("segment", "user"),
        ("category_id", "item"),
        ("brand", "item"),
        ("device", "context"),
        ("position", "context"),
    ]
    return [
        FeatureSpec(name="user_id", kind="id", role="user"),
        FeatureSpec(name="item_id", kind="id", role="item"),
        *(FeatureSpec(name=name, kind="categorical", role=role) for name, role in words),
        *numbers,
    ]


def ndcg(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, at: int = 10) -> float:
    """Mean NDCG@`at` over groups with a label; ties and what is not finite in random order."""
    order = np.random.default_rng(0).permutation(len(scores))
    scores, labels, groups = scores[order], labels[order], groups[order]
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    discount = 1 / np.log2(np.arange(2, at + 2))
    found = []
    for rows in np.split(np.argsort(groups, kind="stable"), np.flatnonzero(np.diff(np.sort(groups))) + 1):
        gains = labels[rows]
        if gains.any() and len(rows) > 1:
            ranked = gains[np.argsort(-scores[rows], kind="stable")][:at]
            best = np.sort(gains)[::-1][:at]
            found.append((ranked * discount[: len(ranked)]).sum() / (best * discount[: len(best)]).sum())
    return float(np.mean(found))


def run(log: Path, store: Path, kind: str, precision: str, seed: int, epochs: int) -> float:
    pl.seed_everything(seed, verbose=False)
    data = RankingDataModule(
        str(log),
        store=str(store),
        columns=Columns(user="user_id", item="item_id", time="event_time", event=EventFlags(flags={"click": "click"})),
        label=EventLabel(event="click"),
        features=features(kind),
        split=TimeSplit(validation=0.1, test=0.2),
        on_overflow="float32",
        batch_size=2048,
        seed=seed,
    )
    data.prepare_data()
    module = RankingModule(
        lambda schema: DCNv2(schema, embedding_dim=8, cross_layers=2, hidden=(64, 32)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-3, weight_decay=1e-2),
    )
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        plugins=[mixed_precision(precision, "cpu")], default_root_dir=store.parent,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    module.eval()
    scores, labels, groups = [], [], []
    with torch.inference_mode(), torch.autocast("cpu", torch.float16 if precision == "16-mixed" else torch.bfloat16):
        for batch in data.test_dataloader():
            scores.append(module(batch).float().numpy())
            labels.append(batch["labels"].numpy())
            groups.append(batch["group"].numpy())
    return ndcg(np.concatenate(scores), np.concatenate(labels), np.concatenate(groups))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 when a check is not ok")
    parser.add_argument("--quick", action="store_true", help="two seeds, a small log")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seeds, impressions, epochs = (2, 40_000, 1) if options.quick else (5, 300_000, 2)
    rows, checks = [], []
    faults = Faults(negative_ages=True, exploding_spend=True, sparse_bursts=True)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log.parquet"
            write_log(log, SyntheticLog(impressions=impressions, users=2000, items=500, seed=seed, faults=faults))
            report = audit(log, policy="fp16")
            print(
                f"seed {seed}: audit score {report.score:.0f}, after the advice {report.advised_score:.0f}", flush=True
            )
            for precision in ("16-mixed", "bf16-mixed"):
                for arm, kind in (("before", "none"), ("after", "auto")):
                    value = run(log, Path(folder) / kind, kind, precision, seed, epochs)
                    found.setdefault((precision, arm), []).append(value)
                    rows.append({"seed": seed, "precision": precision, "arm": arm, "ndcg@10": value})
                    print(f"  {precision:10} {arm:6} NDCG@10 {value:.4f}", flush=True)
    for precision in ("16-mixed", "bf16-mixed"):
        before, after = found[precision, "before"], found[precision, "after"]
        gains = [b - a for a, b in zip(before, after, strict=True)]
        mean = statistics.mean(gains)
        half = STUDENT[len(gains) - 1] * statistics.stdev(gains) / math.sqrt(len(gains))
        print(f"{precision:10} before {statistics.mean(before):.4f} after {statistics.mean(after):.4f} "
              f"gain {mean:.4f} (95 % interval {mean - half:.4f} to {mean + half:.4f})")  # fmt: skip
        checks.append({"name": f"NDCG@10 gained by the cures, {precision}", "value": mean, "goal": GOAL,
                       "interval": [mean - half, mean + half], "ok": mean >= GOAL})  # fmt: skip
    if options.json:
        print(json.dumps({"benchmark": "audit_cures", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
