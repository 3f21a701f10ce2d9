"""Every error raised on purpose: what happened, a blank line, and one thing to do."""

from __future__ import annotations


class LightningMPError(Exception):
    """Base of all errors raised on purpose.

    Its text is `problem`, a blank line, then `hint: ` and one thing to do. The subclasses also inherit
    the builtin a caller would expect, so `except ValueError` works.

    Args:
        problem: What happened, with the value and the name as the user wrote it and the place it stood.
        hint: One thing to do about it.

    Attributes:
        exit_code: What a command ends with when this error reaches it: 2 usage, 3 data refused,
            4 numeric stop, 5 environment or target.

    Example:
        >>> print(ConfigurationError("`scale` must be positive, got -1.0", "leave `scale` out"))
        `scale` must be positive, got -1.0
        <BLANKLINE>
        hint: leave `scale` out
    """

    exit_code = 2

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}\n\nhint: {hint}")
        self.problem = problem
        self.hint = hint

    def __reduce__(self) -> tuple[type[LightningMPError], tuple[str, str]]:
        # The default would call the class with the joined text alone, and a worker's error would be lost.
        return type(self), (self.problem, self.hint)


class ConfigurationError(LightningMPError, ValueError):
    """An argument, or a mix of arguments, that cannot work."""


class SchemaError(LightningMPError, ValueError):
    """Two joints disagree about a feature, or a schema cannot be read."""

    exit_code = 3


class DataError(LightningMPError, ValueError):
    """The data cannot be used as it is."""

    exit_code = 3


class LeakageError(DataError):
    """A feature knows something that happened after its row."""


class ArtifactError(LightningMPError, OSError):
    """A file or folder that we wrote is missing, damaged, or cannot be written."""

    exit_code = 5


class BundleError(ArtifactError):
    """An exported model folder is incomplete, altered or of a newer kind."""


class ParityError(LightningMPError, ArithmeticError):
    """The exported model does not answer as the trained one does."""

    exit_code = 4


class NumericError(LightningMPError, ArithmeticError):
    """Training cannot go on: the numbers no longer mean anything."""

    exit_code = 4


class EnvironmentMismatchError(LightningMPError, RuntimeError):
    """The machine, a driver or a provider does not do what was asked of it."""

    exit_code = 5


class MissingExtraError(LightningMPError, ImportError):
    """An optional package is not installed."""

    exit_code = 5


class LightningMPWarning(UserWarning):
    """Category of every warning of this package; each is given once a run and names something to do."""
