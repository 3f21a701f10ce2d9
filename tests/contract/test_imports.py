"""What each room may load when it is imported, seen in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "lightning_mp"
HEAVY = {
    "torch",
    "lightning",
    "pytorch_lightning",
    "torchmetrics",
    "jsonargparse",
    "numpy",
    "pyarrow",
    "pandas",
    "duckdb",
    "scipy",
    "sklearn",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "optuna",
    "lightgbm",
    "uvicorn",
    "orjson",
    "jinja2",
    "rich",
}
TORCH = {"torch", "torchmetrics", "numpy", "scipy"}  # scipy comes with torchmetrics
LIGHTNING = {*TORCH, "lightning", "pytorch_lightning", "jsonargparse", "pyarrow", "rich"}
# What the modules of a room may load, all of them together. Lightning and torch bring some packages along.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "float_formats": set(),
    "optional": set(),
    "schema": set(),
    "artifacts": set(),
    "zip_digest": set(),
    "bundle": set(),
    "manifest": set(),
    "html_page": set(),
    "hardware": set(),
    "data": {"numpy", "pyarrow"},
    "data.transforms": {"numpy"},
    "data.vocabulary": {"numpy"},
    "baselines": {"numpy"},
    "serve": {"numpy"},
    "networks": TORCH,
    "precision": TORCH,
    "optim": TORCH,
    "metrics": TORCH,
    "export": LIGHTNING,
    "callbacks": LIGHTNING,
    "plugins": LIGHTNING,
    "models": LIGHTNING,
    "datamodules": LIGHTNING,
    "running": LIGHTNING,
    "cli": set(),
}

IMPORT_ROOM = """
import importlib, pkgutil, sys
name = "lightning_mp." + sys.argv[1]
room = importlib.import_module(name)
for module in pkgutil.walk_packages(getattr(room, "__path__", []), name + "."):
    importlib.import_module(module.name)
print(*sorted(sys.modules))
"""


def loaded(code: str, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.split() if name in HEAVY}


def rooms() -> list[str]:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return sorted(found - {"__init__", "__main__"})


def test_every_room_has_a_rule():
    assert not set(rooms()) - set(ALLOWED)


@pytest.mark.parametrize("room", [*rooms(), "data.transforms", "data.vocabulary"])
def test_a_room_loads_no_more_than_it_may(room):
    assert loaded(IMPORT_ROOM, room) <= ALLOWED[room]


def test_the_package_loads_nothing_heavy():
    assert not loaded("import sys, lightning_mp; dir(lightning_mp); print(*sys.modules)")


def test_the_list_of_commands_loads_nothing_heavy():
    code = """
import contextlib, io, sys
from lightning_mp.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["--help"])
print(*sys.modules)
"""
    assert not loaded(code)
