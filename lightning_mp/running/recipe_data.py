"""Make a recipe's DataModule, and nothing else of the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]  # jsonargparse re-exports without saying so
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from lightning_mp.running.command_line import command_line, with_recipes
from lightning_mp.running.recipe_parser import RecipeParser, given_recipes
from lightning_mp.running.refused_setting import placed_refusals


def recipe_datamodule(
    command: str, arguments: Sequence[str], *, switches: Mapping[str, str] | None = None
) -> LightningDataModule:
    """Make the DataModule of a recipe.

    The whole recipe is read and checked, so that it fails here as it would in `fit`; its model and trainer are not
    built.

    Args:
        command: The command that asks, for the words of an error.
        arguments: `--config RECIPE`, a path or the name of a shipped recipe, and options such as `--data.path FILE`.
        switches: Further options of the command, without a value, with what its help says of each.

    Raises:
        ConfigurationError: There is no such recipe, or the DataModule refuses its settings.
        SystemExit: The parser ends the command: 0 after `--help`, 2 after one line on what it refused.
    """
    parser = RecipeParser(prog=f"lightning-mp {command}", allow_abbrev=False)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="Path or name of a recipe.")
    parser.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True, required=False)
    parser.add_lightning_class_args(Trainer, "trainer")
    for option in ("seed_everything", "ckpt_path", "weights_only", "optimizer", "lr_scheduler"):
        parser.add_argument(f"--{option}", type=Any, default=None, help="Of other commands; not used here.")
    for switch, words in (switches or {}).items():
        parser.add_argument(switch, action="store_true", help=words)
    found = with_recipes(arguments)
    with command_line([command, *found]):
        settings = parser.parse_args(found)
        alone = Namespace(data=settings.data)  # type: ignore[no-untyped-call]  # jsonargparse leaves it untyped
        build = getattr(parser, "instantiate", None) or parser.instantiate_classes  # renamed in jsonargparse 4.49
        with placed_refusals(given_recipes(found), found):
            data: LightningDataModule = build(alone).data
    return data
