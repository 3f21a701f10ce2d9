"""Files that cannot be read at all: one clear error each."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_mp.data.input_file import file_kind
from lightning_mp.data.parquet_file import ParquetFile
from lightning_mp.errors import DataError


def refused(path):
    with pytest.raises(DataError) as caught:
        file_kind(path)
    return caught.value


def test_kinds(tmp_path):
    (tmp_path / "a.CSV").write_text("x\n1\n")
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "a.bin")
    assert file_kind(tmp_path / "a.CSV") == "csv"
    assert file_kind(str(tmp_path / "a.bin")) == "parquet"


def test_missing_file_offers_the_nearest_name(tmp_path):
    (tmp_path / "ratings.csv").write_text("x\n")
    error = refused(tmp_path / "rating.csv")
    assert error.problem == f"`{tmp_path / 'rating.csv'}` does not exist"
    assert error.hint == f"did you mean `{tmp_path / 'ratings.csv'}`?"
    assert refused(tmp_path / "no" / "a.csv").hint == f"check the path: there is no folder `{tmp_path / 'no'}`"
    assert refused(tmp_path / "ratings.csv" / "a.csv").hint == "check the path"


def test_folder(tmp_path):
    (tmp_path / "a.csv").write_text("x\n")
    error = refused(tmp_path)
    assert error.problem == f"`{tmp_path}` is a folder, a file was to be read"
    assert error.hint == f"give one of its files: `{tmp_path / 'a.csv'}`"


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "log.csv")
    with pytest.raises(DataError, match=r"log.csv` is a pipe or a device, not a file"):
        file_kind(tmp_path / "log.csv")


def test_a_link_to_nothing_says_where_it_points(tmp_path):
    (tmp_path / "log.csv").symlink_to("gone.csv")
    with pytest.raises(DataError, match=r"(?s)log.csv` does not exist.*hint: it is a link to `gone.csv`, which is not"):
        file_kind(tmp_path / "log.csv")


def test_empty_file(tmp_path):
    (tmp_path / "a.csv").touch()
    assert refused(tmp_path / "a.csv").problem == f"`{tmp_path / 'a.csv'}` is empty: 0 bytes"


def test_other_kinds(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"hello")
    assert "files ending in `.xlsx` are not read here" in refused(tmp_path / "a.xlsx").problem
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"x\n1\n"))
    error = refused(tmp_path / "a.csv")
    assert "is a gzip file" in error.problem
    assert error.hint == "unpack it first: `gunzip`"
    (tmp_path / "a.parquet").write_text("x\n1\n")
    assert "is not a Parquet file: it starts with b'x\\n1\\n'" in refused(tmp_path / "a.parquet").problem


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_no_permission(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("x\n1\n")
    file.chmod(0)
    # A process of its own, for root may read anything until it becomes somebody else.
    program = (
        "import os, sys\nfrom lightning_mp.data.input_file import file_kind\n"
        "os.geteuid() or os.seteuid(65534)\n"
        "try: file_kind(sys.argv[1])\nexcept Exception as error: print(type(error).__name__, error.problem)\n"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == f"DataError `{file}` may not be read: no permission\n"


@pytest.mark.parametrize("keep", [20, 200, -1])
def test_cut_parquet(tmp_path, keep):
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": list(range(1000))}), file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        ParquetFile(file)


def test_parquet_with_a_damaged_page(tmp_path):
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": [f"{i}" for i in range(5000)]}), file, compression="zstd")
    data = bytearray(file.read_bytes())
    data[100:400] = os.urandom(300)
    file.write_bytes(data)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(ParquetFile(file).blocks(["x"]))
