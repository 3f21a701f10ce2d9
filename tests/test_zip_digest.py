from __future__ import annotations

import io
import random
import zipfile

import pytest

from lightning_mp.errors import ArtifactError
from lightning_mp.zip_digest import DigestWriter, require_unaltered


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("a", random.randbytes(3000))
        opened.writestr("b", "text" * 100)
    return file.getvalue()


def test_pieces_of_any_length_are_written_as_they_are(tmp_path):
    content = archive()
    for lengths in ([1], [2], [3, 0, 1], [7], [100_000]):
        file, at = io.BytesIO(), 0
        writer = DigestWriter(file)
        while at < len(content):
            for length in lengths:
                assert writer.write(content[at : at + length]) == len(content[at : at + length])
                at += length
        writer.seal()
        assert file.getvalue()[: len(content) - 2] == content[:-2]
        with zipfile.ZipFile(file) as opened:
            assert opened.testzip() is None
            assert opened.namelist() == ["a", "b"]
        path = tmp_path / "a.zip"
        path.write_bytes(file.getvalue())
        require_unaltered(path)


def test_what_is_no_archive_gets_no_digest():
    writer = DigestWriter(io.BytesIO())
    writer.write(b"something else")
    with pytest.raises(ValueError, match="no zip archive"):
        writer.seal()


def test_any_byte_that_changed_before_the_digest_is_found(tmp_path):
    content = archive()
    file = io.BytesIO()
    writer = DigestWriter(file)
    writer.write(content)
    writer.seal()
    path = tmp_path / "a.zip"
    for place in random.sample(range(len(content) - 2), 300):
        altered = bytearray(file.getvalue())
        altered[place] ^= 1 << random.randrange(8)
        path.write_bytes(altered)
        with pytest.raises(ArtifactError, match="do not have its digest"):
            require_unaltered(path)


@pytest.mark.parametrize("length", [0, 1, 50, -1, -80, -90])
def test_a_file_cut_short_is_named(tmp_path, length):
    file = io.BytesIO()
    writer = DigestWriter(file)
    writer.write(archive())
    writer.seal()
    path = tmp_path / "cut.zip"
    path.write_bytes(file.getvalue()[:length])
    with pytest.raises(ArtifactError, match=r"cut\.zip"):
        require_unaltered(path)
    with pytest.raises(ArtifactError, match="there is no checkpoint"):
        require_unaltered(tmp_path / "none")
