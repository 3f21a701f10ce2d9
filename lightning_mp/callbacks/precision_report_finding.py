"""One finding of a run, as the report's JSON has it."""

from __future__ import annotations

from typing import Any

from lightning_mp.callbacks.precision_report_codes import RUN_CODES
from lightning_mp.data.audit.codes import CODES

Finding = dict[str, Any]


def finding(code: str, severity: str, problem: str, cure: str) -> Finding:
    """A finding with the name of its code and its page in the docs."""
    name = RUN_CODES.get(code) or CODES[code]
    return {"code": code, "name": name, "severity": severity, "problem": problem, "cure": cure,
            "page": f"findings/{code}.md"}  # fmt: skip


def named(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"`{name}`" for name in names[:3]) + more
