"""`lightning-mp recipe list | show NAME | copy NAME [DEST]`: the recipes that come with the package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_mp.artifacts import replacing
from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.errors import ConfigurationError


def main(argv: Sequence[str]) -> int:
    """List, show or copy recipes.

    Args:
        argv: Arguments after `recipe`.

    Returns:
        0.

    Raises:
        ConfigurationError: There is no such recipe, or the copy's name is taken.
    """
    parser = CommandParser("recipe", "List, show or copy the shipped recipes.")
    parser.add_argument("action", choices=("list", "show", "copy"))
    parser.add_argument("name", nargs="?", help="a recipe that `list` names, or a path")
    parser.add_argument("destination", nargs="?", type=Path, default=Path(), help="for `copy`: a folder or a new file")
    options = parser.parse_args(argv)
    if options.action != "list" and options.name is None:
        parser.error(f"`{options.action}` needs the name of a recipe")

    from lightning_mp.running.recipe import available, find

    if options.action == "list":
        recipes = available()
        width = max(map(len, recipes), default=0)
        for name, path in recipes.items():
            print(f"{name:{width}}  {_purpose(path)}".rstrip())
    elif options.action == "show":
        sys.stdout.write(find(options.name).read_text(encoding="utf-8"))
    else:
        print(_copy(find(options.name), options.destination))
    return 0


def _purpose(recipe: Path) -> str:
    """The recipe's first comment line: what it is for."""
    with recipe.open(encoding="utf-8") as file:
        first = file.readline().strip()
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _copy(recipe: Path, destination: Path) -> Path:
    target = destination / recipe.name if destination.is_dir() else destination
    if target.exists():
        raise ConfigurationError(f"`{target}` is there already", "give another name, or remove it first")
    with replacing(target) as file:
        file.write(recipe.read_bytes())
    return target
