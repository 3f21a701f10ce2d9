"""`lightning-mp serve DIR`: answer requests with a bundle."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.optional import require


def main(argv: Sequence[str]) -> int:
    """Serve a bundle until SIGTERM or SIGINT; begun requests are finished.

    Args:
        argv: Arguments after `serve`.

    Returns:
        0; a signal ends the command as an exception, after the drain.

    Raises:
        BundleError: The folder is no bundle, or is damaged.
        EnvironmentMismatchError: The port cannot be taken.
        MissingExtraError: The extra `serve` is not installed.
    """
    parser = CommandParser("serve", "Answer requests with a bundle.")
    parser.add_argument("bundle", type=Path, metavar="DIR", help="the bundle's folder")
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for a free one (default: %(default)s)")
    parser.add_argument("--name", help="the model's name in /v2/models/NAME (default: the folder's)")
    options = parser.parse_args(argv)
    require("uvicorn", "serve")
    require("orjson", "serve")

    from lightning_mp.export.sample_row import sample_row
    from lightning_mp.serve.app import ScoringApp
    from lightning_mp.serve.columns import shown
    from lightning_mp.serve.scorer import Scorer
    from lightning_mp.serve.server import listen, scoring_server

    scorer = Scorer.open(options.bundle)
    # As it was typed: behind a link such as `current` stands another folder tomorrow.
    typed = options.bundle if options.bundle.name not in ("", "..") else options.bundle.resolve()
    name = options.name if options.name is not None else typed.name
    server = scoring_server(ScoringApp(scorer, name=name))
    with listen(options.host, options.port) as sock:
        host, port = sock.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {shown(name)} at {url}; try:")
        body = _readable({"rows": [sample_row(scorer.bundle)]})
        print(f"curl -s {url}/score -d {shlex.quote(body)}", flush=True)
        server.run(sockets=[sock])
    return 0


def _readable(body: object) -> str:
    """JSON with letters as they are, and what a terminal would not print as it stands escaped."""
    told = sys.stdout.encoding or "ascii"
    text = json.dumps(body, ensure_ascii=False)
    return "".join(
        letter if letter.isprintable() and letter.encode(told, "ignore") else json.dumps(letter)[1:-1]
        for letter in text
    )
