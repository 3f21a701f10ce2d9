"""CommandParser: argparse whose refusals read like every other error of this package."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from typing_extensions import override

from lightning_mp.errors import ConfigurationError


class CommandParser(argparse.ArgumentParser):
    """A parser for one command.

    Args:
        command: Its name, as typed after `lightning-mp`.
        description: What it does, one sentence.

    Example:
        >>> parser = CommandParser("serve", "Answer requests with a bundle.")
        >>> _ = parser.add_argument("--port", type=int, default=8000)
        >>> parser.parse_args(["--prot", "1"])
        Traceback (most recent call last):
        ...
        lightning_mp.errors.ConfigurationError: `lightning-mp serve`: unrecognized arguments: --prot 1
        <BLANKLINE>
        hint: did you mean `--port`?
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"lightning-mp {command}", description=description, allow_abbrev=False)

    @override
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"`{self.prog}`: {message}", self._near(message) or f"run `{self.prog} --help`")

    def _near(self, message: str) -> str | None:
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown is None:
            return None
        options: Sequence[str] = [option for action in self._actions for option in action.option_strings]
        near = get_close_matches(unknown[1], options, n=1)
        return f"did you mean `{near[0]}`?" if near else None
