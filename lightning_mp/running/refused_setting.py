"""The refusal of a record that a recipe describes, out of what the parser made of it, with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from lightning_mp.errors import ConfigurationError, LightningMPError
from lightning_mp.running.yaml_position import Position, Step, locate

_REFUSAL = re.compile(r"^[ \t]*(?:- )?(?P<problem>\S[^\n]*)\n[ \t]*\n[ \t]*hint: (?P<hint>[^\n]+)", re.MULTILINE)
_KEY = re.compile(r"`(?P<key>[a-z_]+(?:\.[a-z_0-9]+)+)`")
_FEATURE = re.compile(r"^feature `(?P<name>[^`]+)`")
_QUOTED = re.compile(r"'([^']+)'")


@contextmanager
def placed_refusals(recipes: Sequence[Path], arguments: Sequence[str]) -> Iterator[None]:
    """Raise the refusal of a record instead of the parser's account of all the types it tried, with file and line.

    Args:
        recipes: Files given with `--config`, in order; the last one that holds the setting is named.
        arguments: The command line, without the command; a setting that it gives has no place in a file.

    Raises:
        ConfigurationError: A record refused its settings.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        found = refusal(error)
        if found is None:
            raise
        if not isinstance(found, ConfigurationError):
            raise found from None
        raise (found if _is_typed(found.problem, arguments) else _placed(found, recipes)) from None


def refusal(error: BaseException) -> LightningMPError | None:
    r"""The error of this package that a parser put into a longer one, as its cause or as text.

    Returns:
        `None` where there is none.

    Example:
        >>> text = "Does not validate\n  - `columns.time_zone`: no 'X'\n\n    hint: give its IANA name\nGiven value: 1"
        >>> refusal(ValueError(text)).problem
        "`columns.time_zone`: no 'X'"
    """
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, LightningMPError):
        inner = inner.__cause__ or inner.__context__
    if inner is not None:
        return inner
    told = _REFUSAL.search(str(error))
    return None if told is None else ConfigurationError(told["problem"].strip(), told["hint"].strip())


def _is_typed(problem: str, arguments: Sequence[str]) -> bool:
    key = _KEY.search(problem)
    path = "--data.features." if _FEATURE.match(problem) or key is None else f"--data.{key['key']}."
    options = [argument.partition("=")[0].replace(".init_args", "") for argument in arguments]
    return any(path.startswith(f"{option}.") for option in options if option.startswith("--data."))


def _placed(refused: ConfigurationError, recipes: Sequence[Path]) -> ConfigurationError:
    for file in reversed(recipes):
        try:
            position = _position(refused.problem, file)
        except (yaml.YAMLError, OSError):
            continue
        if position is not None:
            return ConfigurationError(f"{file}:{position.line}: {refused.problem}", refused.hint)
    return refused


def _position(problem: str, file: Path) -> Position | None:
    if feature := _FEATURE.match(problem):
        return locate(file, (Step("key", "data.features.name"),), feature["name"])
    key = _KEY.search(problem)
    if key is None:
        return None
    step = Step("key", f"data.{key['key']}")
    for value in _QUOTED.findall(problem):
        found = locate(file, (step, Step("key", value))) or locate(file, (step,), value)
        if found is not None:
            return found
    return locate(file, (step,))
