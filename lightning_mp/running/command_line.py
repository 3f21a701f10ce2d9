"""The command line as LightningCLI and its parser read it: recipes by path, arguments in `sys.argv`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning_mp.running import recipe


def with_recipes(arguments: Sequence[str]) -> list[str]:
    """The arguments with the path of each recipe in place of its name.

    Args:
        arguments: Of the command, `--config` and `-c` among them.

    Raises:
        ConfigurationError: There is no such recipe.

    Example:
        >>> with_recipes(["--config", "quickstart", "--data.path", "x"])[1].endswith("quickstart.yaml")
        True
    """
    found, named = [], False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if named:
            found.append(str(recipe.find(argument)))
        elif equals and option in ("--config", "-c"):
            found.append(f"{option}={recipe.find(value)}")
        else:
            found.append(argument)
        named = not named and argument in ("--config", "-c")
    return found


@contextmanager
def command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Let `sys.argv` hold the arguments for a while: LightningCLI warns about those that it is given otherwise.

    Args:
        arguments: The command and what follows it.
    """
    before = sys.argv
    sys.argv = ["lightning-mp", *arguments]
    try:
        yield
    finally:
        sys.argv = before
