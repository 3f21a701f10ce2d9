"""The stability benchmark: what it emulates, what it measures by, and three of its settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy, layer_norm, softmax

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmark_file(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in ("cuda_autocast", "stability_settings", "stability_table"):
        sys.modules.pop(name, None)


def test_the_emulated_list_is_the_dispatcher_s(benchmark_file):
    autocast = benchmark_file("cuda_autocast")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    cuda_alone = set()
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if not schema.name.startswith("aten::"):
            continue
        try:
            there = has(name, "AutocastCUDA"), has(name, "AutocastCPU")
        except RuntimeError:  # TorchScript's own, which the dispatcher does not know
            continue
        if there == (True, False):
            cuda_alone.add(schema.name.removeprefix("aten::"))
    assert not autocast.FLOAT32 & autocast.OTHER
    # What a torch of another version has no rule for on a GPU may stay in the lists; nothing may be missing in them.
    assert cuda_alone <= autocast.FLOAT32 | autocast.OTHER
    assert {"softmax", "layer_norm", "sum", "exp", "pow"} <= autocast.FLOAT32


def test_what_cuda_widens_is_widened(benchmark_file):
    autocast = benchmark_file("cuda_autocast")
    x = torch.randn(16, 32, dtype=torch.float16) * 40
    calls = {
        "softmax": lambda x: softmax(x, 1), "layer_norm": lambda x: layer_norm(x, (32,)), "sum": lambda x: x.sum(1),
        "power": lambda x: x**2, "exp": lambda x: (x / 4).exp(), "module": torch.nn.LayerNorm(32),
    }  # fmt: skip
    for name, call in calls.items():
        with autocast.CudaAutocast():
            outside = None if name == "module" else call(x)
            with torch.autocast("cpu", dtype=torch.float16):
                inside = call(x)
        assert inside.dtype is torch.float32, name
        assert outside is None or outside.dtype is torch.float16, name
        assert torch.equal(inside, call((x / 4).float() * 4 if name == "exp" else x.float())), name


def test_what_cuda_refuses_is_refused(benchmark_file):
    autocast = benchmark_file("cuda_autocast")
    share, label = torch.rand(4), torch.ones(4)
    with autocast.CudaAutocast():
        assert binary_cross_entropy(share, label).isfinite()
        with torch.autocast("cpu", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
            torch.nn.BCELoss()(share, label)


def test_settings_lie_within_their_ranges_and_don_t_depend_on_their_count(benchmark_file):
    settings = benchmark_file("stability_settings")
    drawn = settings.draw()
    assert len(drawn) == 60
    assert drawn[:7] == settings.draw(7)
    for name, (low, high) in {**settings.LOG_UNIFORM, **settings.UNIFORM}.items():
        values = [getattr(setting, name) for setting in drawn]
        assert low <= min(values) < max(values) <= high, name
    for name, options in settings.CHOICES.items():
        assert sum(options.values()) == pytest.approx(1.0), name
        assert {getattr(setting, name) for setting in drawn} == set(options), name


def test_a_table_has_the_labels_and_the_bad_rows_that_its_setting_says(benchmark_file):
    settings, tables = benchmark_file("stability_settings"), benchmark_file("stability_table")
    setting = next(setting for setting in settings.draw() if setting.bad == "both" and setting.wide_columns)
    table = tables.make_table(setting, seed=int(np.random.default_rng().integers(1 << 30)))
    spoilt = (~np.isfinite(table.numbers) | (table.numbers == 70_000)).any(1)
    assert np.array_equal(spoilt, table.bad)
    assert not table.bad[tables.TRAINING :].any()
    assert table.bad[: tables.TRAINING].mean() == pytest.approx(setting.bad_share, rel=0.8)
    assert table.labels.mean() == pytest.approx(setting.positives, rel=0.3)
    cured = tables.through_the_gate(table)
    assert np.isfinite(cured).all()
    assert np.abs(cured).max() < 100


def test_auc_is_the_share_of_pairs_in_order(benchmark_file):
    auc = benchmark_file("stability_table").auc
    random = np.random.default_rng()
    scores, labels = random.integers(0, 8, 60).astype(float), np.arange(60) % 3 == 0
    pairs = scores[labels][:, None] - scores[~labels][None]
    assert auc(scores, labels) == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    assert np.isnan(auc(np.where(labels, np.nan, scores), labels))


def test_three_settings_are_stable_with_the_recipe_and_break_plain_mixed_precision():
    command = [sys.executable, str(BENCHMARKS / "stability.py"), "--quick", "--json", "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert [check["name"] for check in result["checks"] if not check["ok"]] in (
        [],
        ["steps to the target, plain over ours"],
    )
    summary = result["summary"]
    assert summary["runs"] == summary["settings"] == 3
    counted = summary["stable of judged, by kind"]["all"]
    assert counted["ours"] == [3, 3]
    assert counted["plain"][0] <= 1 < 3 == counted["plain"][1]
    for row in result["rows"]:
        assert row["ours"]["finite"], row
        assert row["ours"]["finished"], row
