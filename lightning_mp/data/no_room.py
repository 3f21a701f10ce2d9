"""The error of a temporary folder that is full, or is not there."""

from __future__ import annotations

import tempfile

from lightning_mp.errors import ArtifactError


def no_room(error: OSError, what: str) -> ArtifactError:
    """What to raise where a temporary file could not be made or written.

    Args:
        error: What the system said.
        what: Was to be kept there.

    Example:
        >>> print(no_room(OSError(28, "No space left on device"), "the columns of a log").hint)
        set TMPDIR to a folder on a disk with as much room as the log takes
    """
    try:
        folder = f"`{tempfile.gettempdir()}`"
    except OSError:  # none can be written to, which is then the error too
        folder = "the temporary folder"
    problem = f"{folder}: {error.strerror or error}, for {what}"
    return ArtifactError(problem, "set TMPDIR to a folder on a disk with as much room as the log takes")
