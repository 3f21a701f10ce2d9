"""`lightning-mp check DIR`: judge a bundle for a hardware target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lightning_mp.cli.argument_parser import CommandParser


def main(argv: Sequence[str]) -> int:
    """Judge a bundle: files, number formats, providers, and the answers it was sealed with.

    Args:
        argv: Arguments after `check`.

    Returns:
        0 when every answer is good, else 5.
    """
    parser = CommandParser("check", "Judge a bundle for a hardware target.")
    parser.add_argument("bundle", type=Path, metavar="DIR", help="the bundle's folder")
    parser.add_argument("--target", choices=("this",), default="this", help="this: the machine the check runs on")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)

    from lightning_mp.export.check import check_bundle

    report = check_bundle(options.bundle, options.target)
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        width = max(len(finding.name) for finding in report.findings)
        for finding in report.findings:
            print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name:{width}}  {finding.detail}")
    return 0 if report.ok else 5
