"""`lightning-mp check DIR`: judge a bundle for a hardware target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lightning_mp.cli.argument_parser import CommandParser

TARGETS = ("this", "cpu-x86", "cuda-sm75", "cuda-sm80", "cuda-sm90", "tensorrt-10", "tensorrt-11")


def main(argv: Sequence[str]) -> int:
    """Judge a bundle: files, number formats, the answers it was sealed with, and whether a target computes it right.

    Args:
        argv: Arguments after `check`.

    Returns:
        0 when every answer is good, else 5.
    """
    parser = CommandParser("check", "Judge a bundle for a hardware target.")
    parser.add_argument("bundle", type=Path, metavar="DIR", help="the bundle's folder")
    parser.add_argument("--target", choices=TARGETS, default="this", metavar="NAME",
                        help=f"where it is to run: {', '.join(TARGETS)} (default: %(default)s machine)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)

    from lightning_mp.export.check import check_bundle

    report = check_bundle(options.bundle, options.target)
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        width = max(len(finding.name) for finding in report.findings)
        for finding in report.findings:
            mark = "FAIL" if not finding.ok else "note" if finding.warning else "ok  "
            print(f"{mark}  {finding.code}  {finding.name:{width}}  {finding.detail}")
    return 0 if report.ok else 5
