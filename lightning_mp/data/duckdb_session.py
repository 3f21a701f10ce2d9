"""A DuckDB connection that reaches nothing outside, spills to disk, and is gone at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def duckdb_session(*, memory_limit: str | None = None, threads: int | None = None) -> Iterator[Any]:
    """Open an in-memory DuckDB database.

    Args:
        memory_limit: Such as `400MB`; beyond it DuckDB spills to a temporary folder. Left out: 80 % of the machine's.
        threads: Left out: one a core.

    Yields:
        The connection. Its zone is UTC, and it neither installs nor loads extensions.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="lightning-mp-") as folder:
        settings: dict[str, Any] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": str(Path(folder) / "spill"),
            "preserve_insertion_order": False,
        }
        if memory_limit is not None:
            settings["memory_limit"] = memory_limit
        if threads is not None:
            settings["threads"] = threads
        connection = duckdb.connect(":memory:", config=settings)
        try:
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()
