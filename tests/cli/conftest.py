"""The bundle that the serving tests write by hand, for commands that take one."""

from __future__ import annotations

import runpy
from pathlib import Path

_serving = runpy.run_path(str(Path(__file__).parents[1] / "serve" / "conftest.py"))
make_bundle, new_client, tiny_bundle = (_serving[name] for name in ("_make_bundle", "new_client", "tiny_bundle"))
