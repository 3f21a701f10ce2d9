"""Options of the model that a checkpoint would override without a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_mp.errors import ArtifactError, ConfigurationError
from lightning_mp.models.checkpoint_file import require_sound

_KEYWORDS = ("last", "best", "hpc", "registry")


def require_checkpoint(checkpoint: str, *, evaluates: bool) -> None:
    """Refuse a `--ckpt_path` that is damaged, no checkpoint, or, where a trained model is needed, only a word.

    Args:
        checkpoint: As given with `--ckpt_path`.
        evaluates: Whether the command measures or uses a trained model. Lightning's `last` and `best` are then
            refused: where they find nothing, a model that was never trained would be measured without a word.

    Raises:
        ArtifactError: There is no such checkpoint, or it is damaged.
        ConfigurationError: It is a word, and the command needs a file.
    """
    if Path(checkpoint).is_file():
        require_sound(checkpoint)
    elif checkpoint.partition(":")[0] in _KEYWORDS and evaluates:
        raise ConfigurationError(
            f"`--ckpt_path {checkpoint}` names no file: without one, a model that was never trained would be measured",
            "pass the file: `lightning-mp fit` says at its end where its best checkpoint is",
        )
    elif checkpoint.partition(":")[0] not in _KEYWORDS and "://" not in checkpoint:
        raise ArtifactError(f"there is no checkpoint `{checkpoint}`", "check the path given with `--ckpt_path`")


def require_unchanged(checkpoint: str, model: Any, arguments: Sequence[str]) -> None:
    """Refuse a `--model` option whose value the checkpoint replaces.

    Lightning builds the model with the hyper-parameters that the checkpoint holds, whatever the command line says.

    Args:
        checkpoint: As given with `--ckpt_path`.
        model: The model's settings after the checkpoint's were put over them.
        arguments: The command line, without the command.

    Raises:
        ConfigurationError: An option says something else than the checkpoint; both values are named.
    """
    if not Path(checkpoint).is_file():
        return
    for option, value in _model_options(arguments):
        kept = _setting(model, option.removeprefix("--model.").split("."))
        if kept is not _ABSENT and kept != value and str(kept) != str(value):
            raise ConfigurationError(
                f"`{option} {value}` would have no effect: checkpoint `{checkpoint}` was trained with {kept!r}",
                "leave the option out, or train a model with it",
            )


_ABSENT = object()


def _model_options(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for index, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if not option.startswith("--model."):
            continue
        text = value if equals else "".join(arguments[index + 1 : index + 2])
        yield option, yaml.safe_load(text)


def _setting(node: Any, keys: list[str]) -> Any:
    """The value down `keys`; the `init_args` of objects may be left out, as on the command line."""
    for key in keys:
        if key != "init_args" and hasattr(node, "get") and key not in node and "init_args" in node:
            node = node["init_args"]
        if not hasattr(node, "get") or key not in node:
            return _ABSENT
        node = node[key]
    return node.get("class_path") if hasattr(node, "get") and "class_path" in node else node
