"""What `GradientUnderflowMonitor` says is lost, beside what is lost: five model shapes, five loss scales.

    python tests/benchmarks/underflow_truth.py --json --check
    python tests/benchmarks/underflow_truth.py --quick            # two shapes, three scales

The truth comes from a copy of the module in float64 without autocast, on the same batch. The float16 gradient is off
from it in two parts: what the loss scale loses, and what float16's rounding of activations and gradients costs at any
scale. The second is that distance at the best of ten scales, and is taken out as an independent error is; what is left
is the truth, `true`, wherever it is at least twice what was taken out. A loss smaller than that cannot be told from
rounding in this way; `to the best scale` can: the distance to the gradient at the best of the ten scales, each trained
on its own. A cell is healthy where that is at most 1e-3. Each scale that the monitor gives as the cure is tried too.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import sys
import warnings
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from machine import machine
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import GradientUnderflowMonitor

ROWS = 1024
SCALES = [2.0**exponent for exponent in (-8, -4, 0, 6, 12)]
LADDER = [2.0**exponent for exponent in range(2, 22, 2)]
WITHIN, HEALTHY, THRESHOLD = 0.05, 1e-3, 0.01


def tower(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for one, next_ in pairwise(widths):
        layers += [nn.Linear(one, next_), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ClickThrough(nn.Module):
    """Embeddings and dense features into a plain network, with a normalisation after a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.bottom, self.norm = nn.Embedding(4000, 8), nn.Linear(4 * 8 + 8, 64), nn.BatchNorm1d(64)
        self.top = tower(64, 32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        hidden = self.bottom(torch.cat([self.table(ids[:, :4]).flatten(1), dense], 1))
        return self.top(self.norm(hidden.to(dense.dtype)).relu()).squeeze(1)


class DotInteraction(nn.Module):
    """DLRM: sparse tables, a bottom network, dot products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(2000, 16, sparse=True) for _ in range(4)])
        self.bottom, self.top = tower(8, 32, 16), tower(16 + 10, 32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom.to(dense.dtype), *(t(ids[:, i]) for i, t in enumerate(self.tables))], 1)
        dots = torch.bmm(vectors, vectors.mT)
        rows, columns = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([bottom, dots[:, rows, columns]], 1)).squeeze(1)


class TwoTower(nn.Module):
    """A user tower and an item tower, compared by a dot product."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(3000, 16), nn.Embedding(1000, 16)
        self.user, self.item = tower(16 + 8, 64, 32), tower(16, 64, 32)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        user = self.user(torch.cat([self.users(ids[:, 0]), dense], 1))
        return (user.to(dense.dtype) * self.item(self.items(ids[:, 1] % 1000)).to(dense.dtype)).sum(1) - 4


class MixtureOfExperts(nn.Module):
    """MMoE: three experts, a gate and a head a task, losses of very different size."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4000, 8)
        self.experts = nn.ModuleList([tower(4 * 8 + 8, 48, 24) for _ in range(3)])
        self.gates = nn.ModuleList([nn.Linear(4 * 8 + 8, 3) for _ in range(2)])
        self.heads = nn.ModuleList([tower(24, 16, 1) for _ in range(2)])

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        x = torch.cat([self.table(ids[:, :4]).flatten(1), dense], 1)
        experts = torch.stack([expert(x) for expert in self.experts], 1).to(dense.dtype)
        tasks = [(g(x).to(dense.dtype).softmax(1).unsqueeze(2) * experts).sum(1) for g in self.gates]
        click, order = (head(task).squeeze(1) for head, task in zip(self.heads, tasks, strict=True))
        return click + 0.1 * order


class SelfAttention(nn.Module):
    """SASRec: a history through a causal transformer layer; a key's bias has a true gradient of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.positions = nn.Embedding(500, 32), nn.Embedding(20, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.out, self.feed = nn.Linear(32, 32), tower(32, 64, 32)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        history = ids[:128] % 500
        x = self.items(history) + self.positions.weight[: history.shape[1]]
        h = self.first(x)
        dots = self.query(h) @ self.key(h).mT / 32**0.5
        mask = torch.ones(dots.shape[-2:], dtype=torch.bool).triu(1)
        attention = dots.to(dense.dtype).masked_fill(mask, -math.inf).softmax(-1)
        x = x + self.out(attention @ self.value(h))
        return x + self.feed(self.second(x.to(dense.dtype)))


SHAPES: dict[str, type[nn.Module]] = {
    "click-through": ClickThrough,
    "dot interaction": DotInteraction,
    "two-tower": TwoTower,
    "mixture of experts": MixtureOfExperts,
    "self-attention": SelfAttention,
}


def loss_of(network: nn.Module, ids: Tensor, dense: Tensor, labels: Tensor) -> Tensor:
    out = network(ids, dense).to(dense.dtype)
    if isinstance(network, SelfAttention):
        logits = out @ network.items.weight.to(dense.dtype).T
        return cross_entropy(logits[:, :-1].flatten(0, 1), (ids[:128] % 500)[:, 1:].flatten())
    return binary_cross_entropy_with_logits(out, labels)


class Shape(pl.LightningModule):
    """A network, a loss, and a learning rate of zero: every step sees the same weights and the same batch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return loss_of(self.network, *batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


class Gradients(pl.Callback):
    """Keeps the gradients of the last batch, as the scaler will unscale them."""

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        scale = trainer.scaler.get_scale()
        self.kept = {
            name: (p.grad.to_dense() if p.grad.is_sparse else p.grad).double() / scale
            for name, p in pl_module.network.named_parameters()
        }


def train(network: nn.Module, batch: tuple[Tensor, ...], scale: float) -> tuple[Any, dict[str, Tensor]]:
    """What the monitor reports at a scale that does not move, and the gradients that it judged."""
    monitor, gradients = GradientUnderflowMonitor(1, probe_every_n_steps=1), Gradients()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6, backoff_factor=1 - 1e-7)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)], callbacks=[monitor, gradients],
    )  # fmt: skip
    rows = TensorDataset(*(tensor.repeat(3, *[1] * (tensor.dim() - 1)) for tensor in batch))
    trainer.fit(Shape(copy.deepcopy(network)), DataLoader(rows, batch_size=len(batch[0])))
    return monitor.report, gradients.kept


def error(gradients: dict[str, Tensor], true: dict[str, Tensor], names: list[str]) -> float:
    lost = math.sqrt(sum(float((gradients[name] - true[name]).square().sum()) for name in names))
    return lost / math.sqrt(sum(float(true[name].square().sum()) for name in names))


def rows_of(shape: str, scales: list[float], seed: int) -> list[dict[str, Any]]:
    """One row a scale, for all parameters together and for the layer that the monitor calls worst."""
    torch.manual_seed(seed)
    network = SHAPES[shape]()
    batch = (torch.randint(1000, (ROWS, 12)), torch.randn(ROWS, 8), (torch.rand(ROWS) < 0.02).float())
    double = copy.deepcopy(network).double()
    loss_of(double, batch[0], batch[1].double(), batch[2].double()).backward()
    true = {name: (p.grad.to_dense() if p.grad.is_sparse else p.grad).detach() for name, p in double.named_parameters()}
    everything = list(true)
    ladder = [train(network, batch, scale)[1] for scale in LADDER]
    finite = [kept for kept in ladder if all(gradient.isfinite().all() for gradient in kept.values())]
    rows = []
    for scale in scales:
        report, gradients = train(network, batch, scale)
        worst = report.layers[0].layer
        own = [
            name for name in everything
            if f"network.{name}".rpartition(".")[0] == worst and f"network.{name}" not in report.zero_gradients
        ]  # fmt: skip
        cured = None
        if report.layers[0].lost_norm > THRESHOLD:
            after = train(network, batch, report.cure(THRESHOLD))[1]
            best = min(finite, key=lambda kept: error(kept, true, own))
            cured = error(after, best, own)
        for what, names, measured in (
            ("all", everything, report.lost_norm),
            (worst.removeprefix("network."), own, report.layers[0].lost_norm),
        ):
            best = min(finite, key=lambda kept: error(kept, true, names))
            floor, total = error(best, true, names), error(gradients, true, names)
            lost = math.sqrt(max(total**2 - floor**2, 0.0))
            rows.append({
                "shape": shape, "log2 scale": math.log2(scale), "of": what, "measured": measured,
                "true": lost if lost >= 2 * floor else None, "rounding at any scale": floor,
                "to the best scale": error(gradients, best, names), "bits": report.bits,
                "after the cure": cured if what != "all" else None,
            })  # fmt: skip
    return rows


def main() -> int:
    """Print the table; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON as the last line")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--quick", action="store_true", help="two shapes, three scales")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    shapes = list(SHAPES)[:2] if arguments.quick else list(SHAPES)
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        rows += rows_of(shape, SCALES[::2] if arguments.quick else SCALES, arguments.seed)

    def shown(value: float | None) -> str:
        return f"{value:18.2e}" if value is not None else f"{'-':>18}"

    columns = ["measured", "true", "to the best scale", "rounding at any scale", "after the cure"]
    print(
        f"{'shape':20}{'log2 S':>7}  {'of':12}"
        + "".join(f"{name.replace(' at any scale', ''):>18}" for name in columns)
    )
    for row in rows:
        print(
            f"{row['shape']:20}{row['log2 scale']:7.0f}  {row['of']:12}" + "".join(shown(row[name]) for name in columns)
        )
    checks = []
    for what in ("all parameters", "worst layer"):
        own = [row for row in rows if (row["of"] == "all") == (what == "all parameters")]
        sick = [row for row in own if row["to the best scale"] > HEALTHY]
        healthy = [row for row in own if row["to the best scale"] <= HEALTHY]
        limits = {
            "distance to float64's truth": (
                [abs(row["measured"] / row["true"] - 1) for row in own if row["true"]],
                WITHIN,
            ),
            "distance to the best scale's": (
                [abs(row["measured"] / row["to the best scale"] - 1) for row in sick],
                WITHIN,
            ),
            "measured where healthy": ([row["measured"] for row in healthy], HEALTHY),
            "lost after the cure": (
                [row["after the cure"] for row in own if row["after the cure"] is not None],
                THRESHOLD,
            ),
        }
        for name, (values, goal) in limits.items():
            if values:
                checks.append(
                    {"name": f"{name}, {what}", "cells": len(values), "value": max(values), "goal": goal,
                     "ok": max(values) <= goal}
                )  # fmt: skip
    for check in checks:
        found = f"{check['value']:.2e} at most in {check['cells']} cells"
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {found}, goal {check['goal']:g}")
    if arguments.json:
        print(json.dumps({"benchmark": "underflow_truth", "machine": machine(), "checks": checks, "rows": rows}))
    return int(arguments.check and not all(check["ok"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
