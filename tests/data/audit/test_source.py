"""Files that are damaged inside: one clear error, whatever Arrow makes of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.audit.audit import audit
from lightning_mp.errors import DataError

ROWS = 3000


def rows_read(path, column):
    with pq.ParquetFile(path) as file:
        return sum(batch.num_rows for batch in file.iter_batches(columns=[column]))


@pytest.fixture
def short_column(tmp_path):
    """A file of 3,000 rows whose column `count` ends before: a page says that it holds fewer values than it does."""
    path = tmp_path / "table.parquet"
    draw = np.random.default_rng()
    table = pa.table({"share": draw.random(ROWS), "count": draw.integers(0, 9, ROWS)})
    pq.write_table(table, path, compression="none", use_dictionary=False, data_page_size=2000)
    start = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    sound = path.read_bytes()
    for place in range(start, start + 40):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                if 0 < rows_read(path, "count") < ROWS:
                    return path
            except (pa.ArrowException, OSError):
                continue
    raise AssertionError("no bit of the page's header makes the column shorter")


@pytest.mark.parametrize("label", [None, "share"])
def test_a_column_that_ends_before_the_others_is_refused(short_column, label):
    with pytest.raises(DataError, match=r"`.*table\.parquet` cannot be read as Parquet: "):
        audit(short_column, label=label)


def test_a_column_that_ends_before_the_others_is_named(short_column):
    with pytest.raises(DataError, match=r"column `count` ends after [\d,]+ of 3,000 rows"):
        audit(short_column)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_an_ipc_file_with_an_offset_out_of_bounds_is_refused(tmp_path, kind):
    words = pa.array([f"word{place}" for place in range(500)]).cast(kind)
    path = tmp_path / "table.arrow"
    with pa.ipc.new_file(path, pa.schema([("word", kind)])) as writer:
        writer.write_batch(pa.record_batch([words], names=["word"]))
    offsets = words.indices.buffers()[1] if pa.types.is_dictionary(kind) else words.buffers()[1]
    content, wanted = bytearray(path.read_bytes()), offsets.to_pybytes()[: 4 * 400]
    at = content.rindex(wanted) + len(wanted)
    content[at - 1] ^= 0x40  # an upper bit of one of them
    path.write_bytes(content)
    # In a process of its own: what is followed out of the file would end this one.
    code = f"from lightning_mp.data.audit.audit import audit; audit({str(path)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1, (run.returncode, run.stderr)
    assert "DataError: " in run.stderr
    assert "table.arrow` cannot be read as Arrow IPC: " in run.stderr
