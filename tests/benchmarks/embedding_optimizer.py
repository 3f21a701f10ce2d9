"""Milliseconds of an optimizer's step on an embedding table, and the memory of its state, by the table's size.

    python tests/benchmarks/embedding_optimizer.py --json --check
    python tests/benchmarks/embedding_optimizer.py --quick

One table of 16 columns, looked up at 4096 x 26 places drawn evenly over 26 equal parts of it, as a batch of 26 features
does. Timed is what depends on the optimizer: the backward pass through the lookup and the step, for a dense gradient
where `Adam` needs one, for a sparse one else. All take turns; the check is the median of the ratios, turn by turn, on
the wall, and CPU seconds stand beside. One thread, unless asked otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

import torch
from machine import machine
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad

WIDTH, BATCH, FEATURES = 16, 4096, 26
SIZES = (26_000, 260_000, 2_600_000)
OURS = "RowWiseAdagrad"
WAYS: dict[str, tuple[bool, Callable[..., Optimizer]]] = {
    OURS: (True, partial(RowWiseAdagrad, lr=0.02)),
    "SparseAdam": (True, partial(torch.optim.SparseAdam, lr=1e-3)),
    "Adam, fused": (False, partial(torch.optim.Adam, lr=1e-3, fused=True)),
    "Adam": (False, partial(torch.optim.Adam, lr=1e-3)),
}
GOALS = {"Adam": 10.0, "Adam, fused": 4.0, "SparseAdam": 2.0}
STATE_GOAL = 30.0


class Way:
    """One optimizer with a table of its own."""

    def __init__(self, rows: int, sparse: bool, make: Callable[..., Optimizer]) -> None:
        self.table = nn.Embedding(rows, WIDTH, sparse=sparse)
        self.optimizer = make(self.table.parameters())

    def step(self, ids: Tensor, direction: Tensor) -> tuple[float, float]:
        """Seconds of the wall and of CPU."""
        looked_up = self.table(ids)
        wall, cpu = time.perf_counter(), time.process_time()
        looked_up.backward(direction)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - wall, time.process_time() - cpu

    @property
    def state_bytes(self) -> int:
        tensors = chain.from_iterable(state.values() for state in self.optimizer.state.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if torch.is_tensor(tensor))


def measured(rows: int, repeats: int) -> dict[str, dict[str, object]]:
    ways = {name: Way(rows, *how) for name, how in WAYS.items()}
    part = rows // FEATURES
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for repeat in range(repeats + 2):
        ids = torch.randint(0, part, (BATCH, FEATURES)) + torch.arange(FEATURES) * part
        direction = torch.randn(BATCH, FEATURES, WIDTH)
        for name, way in ways.items():
            seconds = way.step(ids, direction)
            if repeat > 1:  # the first steps make state and touch memory
                seen[name].append(seconds)
    return {name: {"seconds": pairs, "state": ways[name].state_bytes} for name, pairs in seen.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON in the last line")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    parser.add_argument("--quick", action="store_true", help="without the table in the middle, 3 repeats")
    parser.add_argument(
        "--allow-missing", action="store_true", help="taken for all benchmarks; nothing is missing here"
    )
    parser.add_argument("--repeats", type=int, default=21, help="steps of each optimizer")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    sizes, repeats = (SIZES[::2], 3) if options.quick else (SIZES, options.repeats)
    table, checks = [], []
    print(f"{'rows':>10s}  {'optimizer':16s}{'ms a step':>12s}{'ms of CPU':>12s}{'state, MB':>12s}")
    for rows in sizes:
        found = measured(rows, repeats)
        for name, one in found.items():
            wall, cpu = (1e3 * statistics.median(pair[clock] for pair in one["seconds"]) for clock in (0, 1))
            print(f"{rows:10,d}  {name:16s}{wall:12.1f}{cpu:12.1f}{one['state'] / 1e6:12.1f}")
            table.append({"rows": rows, "optimizer": name, "ms": wall, "ms_of_cpu": cpu, "state_bytes": one["state"]})
    for name, goal in GOALS.items():
        turns = list(zip(found[name]["seconds"], found[OURS]["seconds"], strict=True))
        value, of_cpu = (statistics.median(theirs[clock] / own[clock] for theirs, own in turns) for clock in (0, 1))
        ok = value >= goal
        checks.append(
            {"name": f"{name} / {OURS}, {rows:,} rows", "value": value, "goal": goal, "ok": ok, "cpu": of_cpu}
        )
    for name in ("Adam", "SparseAdam"):
        value = found[name]["state"] / found[OURS]["state"]
        checks.append(
            {"name": f"state of {name} / ours", "value": value, "goal": STATE_GOAL, "ok": value >= STATE_GOAL}
        )
    print()
    for check in checks:
        said = f"{check['value']:.1f}" + (f" ({check['cpu']:.1f} of CPU)" if "cpu" in check else "")
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {said} (goal {check['goal']:g})")
    if options.json:
        print(json.dumps({"benchmark": "embedding_optimizer", "machine": machine(), "checks": checks, "rows": table}))
    return 1 if options.check and not all(check["ok"] for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
