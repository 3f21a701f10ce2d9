"""A sha256 of a zip archive inside the archive: readers that do not know it read the archive as before."""

from __future__ import annotations

import hashlib
import hmac
import zipfile
import zlib
from pathlib import Path
from typing import IO, Final

from lightning_mp.errors import ArtifactError

_MARK: Final = b"lightning_mp sha256 "
_COMMENT: Final = len(_MARK) + 64
_PIECE: Final = 1 << 20


class DigestWriter:
    """Writes a zip archive from beginning to end, and its digest behind it, as the archive's comment.

    Args:
        file: To write to; not touched by others meanwhile.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> writer = DigestWriter(file)
        >>> with zipfile.ZipFile(io.BytesIO(), "w") as archive:
        ...     archive.writestr("a", "1")
        ...     archive.fp.seek(0)
        ...     content = archive.fp
        0
        >>> _ = writer.write(content.getvalue())
        >>> writer.seal()
        >>> zipfile.ZipFile(file).comment[:19]
        b'lightning_mp sha256'
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._tail = b""  # the last two bytes are the comment's length, which the digest changes

    def write(self, piece: bytes) -> int:
        """Write on; how many bytes that were."""
        view = memoryview(piece)
        if len(view) < 2:
            view = memoryview(self._tail + piece)
            self._tail = b""
        for part in (self._tail, view[:-2]):
            self._hash.update(part)
            self._file.write(part)
        self._tail = bytes(view[-2:])
        return len(piece)

    def flush(self) -> None:
        """Pass on what is written, but for the last two bytes."""
        self._file.flush()

    def seal(self) -> None:
        """Write the digest; the archive is whole.

        Raises:
            ValueError: What was written is no archive without a comment.
        """
        if self._tail != b"\0\0":
            raise ValueError("no zip archive without a comment was written")
        self._file.write(_COMMENT.to_bytes(2, "little") + _MARK + self._hash.hexdigest().encode())


def require_unaltered(path: str | Path) -> None:
    """Refuse an archive whose bytes are not those that were written.

    By its own digest where it has one, else by the checksums of its entries, which leave the headers out.

    Args:
        path: The archive.

    Raises:
        ArtifactError: It is missing, cut short, altered, or no archive.
    """
    file = Path(path)
    another = "take another checkpoint of the run, or train again"
    if not file.is_file():
        raise ArtifactError(f"there is no checkpoint `{file}`", "check the path")
    try:
        digest = _digest(file)
        if digest is not None and not hmac.compare_digest(*digest):
            raise ArtifactError(f"checkpoint `{file}` is damaged: its bytes do not have its digest", another)
        if digest is None:
            with zipfile.ZipFile(file) as archive:
                if archive.comment and archive.comment[:12] == _MARK[: len(archive.comment)][:12]:
                    raise ArtifactError(f"checkpoint `{file}` was cut short: a part of its digest is missing", another)
                damaged = archive.testzip()
            if damaged is not None:
                raise ArtifactError(f"checkpoint `{file}` is damaged: `{damaged}` fails its checksum", another)
    except PermissionError as error:
        raise ArtifactError(f"checkpoint `{file}` may not be read: no permission", "change its mode") from error
    except ArtifactError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        problem = f"`{file}` is no checkpoint, or was cut short or altered: {error}"
        raise ArtifactError(problem, another) from error


def _digest(file: Path) -> tuple[bytes, bytes] | None:
    """The digest that an archive carries, and that of its bytes; `None` where it carries none."""
    left = file.stat().st_size - _COMMENT - 2
    if left < 0:
        return None
    with file.open("rb") as opened:
        opened.seek(left + 2)
        comment = opened.read()
        if not comment.startswith(_MARK):
            return None
        opened.seek(0)
        found = hashlib.sha256()
        while left > 0:
            piece = opened.read(min(_PIECE, left))
            found.update(piece)
            left -= len(piece)
    return comment[len(_MARK) :], found.hexdigest().encode()
