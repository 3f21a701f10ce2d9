"""Files and folders that a kill, a full disk or a flipped bit cannot make lie."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lightning_mp.errors import ArtifactError

_PREFIX = ".lightning_mp-tmp-"
_CWD, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <fcntl.h> and <linux/fs.h>


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Write a file so that it is either the old one or the whole new one, whatever happens in between.

    The bytes go to a temporary file in the same folder (a rename across file systems is a copy), are forced to
    disk, and take the name in one step. Where the block raises, the old file stands untouched.

    Args:
        path: The file to write; its folder is made when it is missing.

    Yields:
        A binary file to write to.

    Raises:
        ArtifactError: The folder or the file cannot be written: no permission, no space, a folder in the way; or the
            path is a device or a pipe, which a file would take the place of.

    Example:
        >>> import tempfile, pathlib
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "scores.json"
        >>> with replacing(target) as file:
        ...     _ = file.write(b"{}")
        >>> target.read_bytes()
        b'{}'
    """
    target = Path(path)
    with _named(target):
        if target.is_dir():
            raise ArtifactError(f"`{target}` is a folder, a file was to be written there", "give another path")
        if (target.exists() and not target.is_file()) or target.absolute().parent == Path("/dev"):
            raise ArtifactError(f"`{target}` is a device or a pipe, and no file can take its place", "name a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        temporary = target.with_name(f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync(target.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Fill a folder so that it appears whole under its name, or not at all.

    Args:
        path: The folder to make, or a symbolic link to where it is to lie.
        overwrite: Replace a folder that is there: the two exchange their names in one step (Linux's
            `renameat2`), so that a kill leaves the old one or the new one, then the old one is removed.

    Yields:
        The temporary folder to write into; it lies beside `path`.

    Raises:
        ArtifactError: `path` exists and `overwrite` is false, or it cannot be written.
    """
    target = Path(path)
    with _named(target):
        if target.is_symlink():  # the folder itself is replaced: exchanged for a folder, the link would be lost
            target = target.resolve()
        if target.exists() and not overwrite:
            raise ArtifactError(f"`{target}` is there already", "give another path, or remove it first")
        if target.exists() and not target.is_dir():
            raise ArtifactError(f"`{target}` is a file, a folder was to be written there", "give another path")
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        temporary = target.with_name(f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}")
        temporary.mkdir()
        try:
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                _sync(entry)
            if target.exists():
                _exchange(temporary, target)
            else:
                temporary.replace(target)
            _sync(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sweep(folder: str | Path) -> list[Path]:
    """Remove what killed writers left in `folder`: temporaries of ours whose process is gone.

    Returns:
        What was removed.
    """
    removed = []
    for leftover in Path(folder).glob(f"{_PREFIX}*"):
        owner = leftover.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and _alive(int(owner)):
            continue
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            with suppress(OSError):
                leftover.unlink()
        removed.append(leftover)
    return removed


def digest(path: str | Path) -> str:
    """sha256 of a file, as hexadecimal text.

    Raises:
        ArtifactError: The file cannot be read.
    """
    with _named(Path(path)), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: str | Path, *, size: int, sha256: str | None = None) -> None:
    """Refuse a file that is missing, cut short, or altered.

    Args:
        path: The file.
        size: Bytes it must have. Checked first: a checksum alone can be right for an emptied file.
        sha256: Its digest; left out, only the size is checked.

    Raises:
        ArtifactError: It is missing or differs; the file, what it has and what it should have are named.
    """
    file = Path(path)
    if not file.is_file():
        raise ArtifactError(f"`{file}` is missing (expected {size:,} bytes)", "copy all files of the folder")
    found = file.stat().st_size
    if found != size:
        raise ArtifactError(f"`{file}` has {found:,} bytes, its manifest says {size:,}", "write or copy it again")
    if sha256 is not None and digest(file) != sha256:
        raise ArtifactError(f"`{file}` does not match its digest: its bytes were altered", "write or copy it again")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_CWD, os.fsencode(one), _CWD, os.fsencode(other), _EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except ArtifactError:
        raise
    except OSError as error:
        where = error.filename or path
        hints = {
            "PermissionError": "give a folder you may write to",
            "NotADirectoryError": "a part of the path is a file; give another path",
            "FileExistsError": "a part of the path is a file; give another path",
            "FileNotFoundError": "check the path",
        }
        hint = hints.get(type(error).__name__, "check the disk: `df -h` shows the space that is left")
        raise ArtifactError(f"`{where}`: {error.strerror or error}", hint) from error
