"""Raw keys on disk: one Arrow column in the order of their codes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lightning_mp.artifacts import check_file
from lightning_mp.errors import ArtifactError


def write_batch(path: Path, batch: pa.RecordBatch) -> None:
    """Write one record batch as an uncompressed Arrow IPC file: a compressed one cannot be mapped without a copy."""
    with path.open("wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def write_keys(path: Path, keys: pa.Array | pa.ChunkedArray) -> None:
    """Write raw keys, code 0 first."""
    whole = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    write_batch(path, pa.record_batch([whole], names=["key"]))


def read_keys(path: Path, *, size: int) -> pa.Array:
    """Read what `write_keys` wrote, mapped.

    Args:
        path: The file.
        size: Bytes it must have.

    Raises:
        ArtifactError: It is missing, cut short, or not an Arrow file.
    """
    check_file(path, size=size)
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            return reader.get_batch(0).column(0)
    except pa.ArrowInvalid as error:
        raise ArtifactError(f"`{path}` is not a readable Arrow file: {error}", "write the store again") from error
