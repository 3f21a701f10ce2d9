"""The slow death of a loss scale: one bad batch in 1000 steps, and a growth interval of 2000, torch's default.

    python tests/benchmarks/loss_scale_death.py --json --check
    python tests/benchmarks/loss_scale_death.py --quick       # every count a tenth: one in 100, an interval of 200

A scale that is halved every 1000 steps and doubled after 2000 good ones never grows. At 2**-128 its reciprocal is
infinite in float32, and a scale of zero makes 0 * inf of every gradient: the next good batch then writes NaN into the
weights, and no error is raised. The steps are the real ones of the scaler and of SGD; the gradient is set by hand, so
that 172 000 of them take seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Any

import torch
from machine import machine

from lightning_mp.precision.bounded_grad_scaler import BoundedGradScaler


def live(scaler: torch.amp.GradScaler, *, steps: int, bad_every: int) -> dict[str, Any]:
    """Step at which the scale fell below 1, became zero, and destroyed the weights; None where it did not."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1e-6)
    good, bad = torch.ones(4), torch.full((4,), math.inf)
    row: dict[str, Any] = {"below 1 at step": None, "zero at step": None, "weights destroyed at step": None}
    begin = time.process_time()
    for step in range(1, steps + 1):
        weight.grad = scaler.scale(bad if step % bad_every == 0 else good)
        scaler.step(optimizer)
        scaler.update()
        if step % bad_every == 0:  # the scale moves here alone, or grows between
            scale = scaler.get_scale()
            if scale < 1 and row["below 1 at step"] is None:
                row["below 1 at step"] = step
            if scale == 0 and row["zero at step"] is None:
                row["zero at step"] = step
        elif row["weights destroyed at step"] is None and step % bad_every == 1 and not bool(weight.isfinite().all()):
            row["weights destroyed at step"] = step
    row["scale in the end"] = scaler.get_scale()
    row["weights finite in the end"] = bool(weight.isfinite().all())
    row["CPU seconds"] = time.process_time() - begin
    return row


def main() -> int:
    """Print the table; exit code 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the result as JSON as the last line")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--quick", action="store_true", help="a tenth of every count")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tenth = 10 if arguments.quick else 1
    bad_every, interval, steps = 1000 // tenth, 2000 // tenth, 172_000 // tenth
    scalers = {
        "torch.amp.GradScaler": torch.amp.GradScaler("cpu", growth_interval=interval),
        "BoundedGradScaler, same interval": BoundedGradScaler("cpu", init_scale=2.0**16, growth_interval=interval),
        "BoundedGradScaler": BoundedGradScaler("cpu", init_scale=2.0**16, growth_interval=200 // tenth),
    }
    rows = [{"scaler": name, **live(scaler, steps=steps, bad_every=bad_every)} for name, scaler in scalers.items()]
    print(f"{steps} steps, one bad batch in {bad_every}, growth interval {interval}")
    for row in rows:
        print("; ".join(f"{key}: {value}" for key, value in row.items()))
    stock, same, ours = rows
    checks = [
        {
            "name": "torch's scaler destroys the weights",
            "value": int(not stock["weights finite in the end"]),
            "goal": 1,
        },
        {"name": "ours does not, at the same interval", "value": int(same["weights finite in the end"]), "goal": 1},
        {"name": "ours does not, at its own", "value": int(ours["weights finite in the end"]), "goal": 1},
        {"name": "ours keeps the scale at 1 or more", "value": same["scale in the end"], "goal": 1},
    ]
    for check in checks:
        check["ok"] = check["value"] >= check["goal"]
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']}: {check['value']:g}")
    if arguments.json:
        print(json.dumps({"benchmark": "loss_scale_death", "machine": machine(), "checks": checks, "rows": rows}))
    return int(arguments.check and not all(check["ok"] for check in checks))


if __name__ == "__main__":
    sys.exit(main())
