"""What of a parity report has a code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def report_findings(report: Mapping[str, Any], layers: Mapping[str, str]) -> list[dict[str, str]]:
    """Findings of a report: what refused the file first, then what is worth a look.

    Args:
        report: Of one attempt; with `code` and `failed` where it was refused.
        layers: For each layer that multiplies `"float16"`, or why it is float32.

    Returns:
        `code` and `problem` of each; see `EXPORT_CODES`.
    """
    found = [(report["code"], report["failed"])] if "failed" in report and "code" in report else []
    for name, why in layers.items():
        if why.startswith(("it reaches", "its largest weight")):
            found.append(("MP305", f"layer `{name}` stays in float32: {why}"))
    for name, count in report.get("outside", {}).items():
        told = f"input `{name}`: {count:,} ids are outside of their vocabulary; the graph reads them as row 0"
        found.append(("MP304", told))
    if report.get("batch_dependence"):
        found.append(("MP312", f"a logit moves by up to {report['batch_dependence']:.2g} with the rows beside it"))
    return [{"code": code, "problem": problem} for code, problem in found]
