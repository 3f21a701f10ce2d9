"""What a benchmark's result says of the machine: enough to read the figures, and no name."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "lightning-mp",
    "torch",
    "lightning",
    "pyarrow",
    "numpy",
    "pandas",
    "polars",
    "duckdb",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "uvicorn",
    "httptools",
    "uvloop",
    "fastapi",
    "litserve",
    "datasets",
    "fuxictr",
    "deepctr-torch",
    "torch-rechub",
)


def machine() -> dict[str, object]:
    """Processor, cores, load, date and versions."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "kind": f"{os.cpu_count()}-core {_processor()} virtual machine",
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": found,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
