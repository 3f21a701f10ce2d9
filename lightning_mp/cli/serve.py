"""`lightning-mp serve DIR`: answer requests with a bundle."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from math import isnan
from pathlib import Path

from lightning_mp.bundle import SAMPLES, Bundle
from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.optional import require

_PLAIN = {"BYTES": "a", "INT64": 0, "FP64": 0.0}


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
        body = json.dumps({"rows": [sample_row(scorer.bundle)]})
        print(f"curl -s {url}/score -d {shlex.quote(body)}", flush=True)
        server.run(sockets=[sock])
    return 0


def sample_row(bundle: Bundle) -> dict[str, object]:
    """A row that can be asked for: the first real one that the bundle keeps, or one of plain values."""
    types = {spec.name: spec.datatype for spec in bundle.manifest.inputs}
    if SAMPLES not in bundle.manifest.files:
        plain = {spec.name: (_PLAIN[spec.datatype], spec.shape) for spec in bundle.manifest.inputs}
        return {name: [value] * abs(shape[0]) if shape else value for name, (value, shape) in plain.items()}
    from lightning_mp.export.sample_inputs import read_samples
    from lightning_mp.serve.columns import MISSING

    columns, _ = read_samples(bundle.path / SAMPLES, bundle.manifest.inputs)
    row = {name: values[:1].tolist()[0] for name, values in columns.items() if len(values)}
    lists = {spec.name for spec in bundle.manifest.inputs if spec.is_list}
    row |= {name: [value for value in row[name] if value != MISSING[types[name]]] for name in lists & row.keys()}
    return {name: value for name, value in row.items() if value != MISSING[types[name]] and not _is_nan(value)}


def _is_nan(value: object) -> bool:
    return any(map(_is_nan, value)) if isinstance(value, list) else isinstance(value, float) and isnan(value)
