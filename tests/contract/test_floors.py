"""The floors hold, and a breach of any of their rules is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

# Rooms a contract must name as soon as they exist; import-linter refuses names of rooms that do not.
WITHOUT_TORCH = {
    "data", "hardware", "bundle", "manifest", "serve", "baselines", "schema", "artifacts", "supervisor", "html_page"
}  # fmt: skip
WITHOUT_LIGHTNING = {"networks", "precision", "optim", "metrics"}

BREACHES = {
    "a room imports one above it": ("data/breach.py", "from lightning_mp import export\n"),
    "a room imports its neighbour": ("callbacks/breach.py", "from lightning_mp import models\n"),
    "rows reach torch inside a function": ("data/breach.py", "def hidden() -> None:\n    import torch\n"),
    "a server reaches torch": ("serve/breach.py", "def hidden() -> None:\n    import torch\n"),
    "networks reach Lightning": ("networks/breach.py", "def hidden() -> None:\n    import lightning.pytorch\n"),
    "a new room has no floor": ("attic/__init__.py", '"""No floor."""\n'),
}


@pytest.mark.parametrize(("rooms", "forbidden"), [(WITHOUT_TORCH, "torch"), (WITHOUT_LIGHTNING, "lightning")])
def test_a_contract_names_every_room_it_is_about(rooms, forbidden):
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    sources = next(c["source_modules"] for c in contracts if forbidden in c.get("forbidden_modules", [""])[0])
    there = {
        p.stem for p in (CHECKOUT / "lightning_mp").iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    assert {name.removeprefix("lightning_mp.") for name in sources} == rooms & there


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(CHECKOUT / "lightning_mp", tmp_path / "lightning_mp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_floors_hold(copied):
    done = lint(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found(copied, breach):
    name, code = BREACHES[breach]
    path = copied / "lightning_mp" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    done = lint(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    assert Path(name).parent.name in done.stdout
