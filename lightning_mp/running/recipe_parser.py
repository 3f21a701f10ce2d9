"""The parser of recipes and options: Lightning's, with one readable line for an error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lightning_mp.running.recipe_error import explain


class RecipeParser(LightningArgumentParser):
    """Lightning's parser; a refused setting ends the command with one line and exit code 2."""

    commands: tuple[RecipeParser, ...] = ()
    """Parsers of the commands under this one, whose settings a typo is compared with."""

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a parser of nested settings: the outer one sees all alternatives fail, then asks
            super().error(message, ex)
        arguments = sys.argv[2:]
        line = explain(message, recipes=given_recipes(arguments), options=self._options(), arguments=arguments)
        sys.stderr.write(f"error: {line}\n")
        raise SystemExit(2)

    def _options(self) -> list[str]:
        names = [list(parser.get_defaults(skip_validation=True).keys()) for parser in self.commands or (self,)]
        return list(dict.fromkeys(name for group in names for name in group))


def given_recipes(arguments: list[str]) -> list[Path]:
    """Files that the arguments give with `--config`, in order, those that are there."""
    files = []
    for index, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option in ("--config", "-c"):
            files.append(value if equals else "".join(arguments[index + 1 : index + 2]))
    return [Path(file) for file in files if Path(file).is_file()]
