"""One line for a setting that was refused: file, line, key, and what may have been meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import yaml

from lightning_mp.running.parse_failure import ParseFailure, read
from lightning_mp.running.setting_names import classes_beside, settings_of
from lightning_mp.running.yaml_position import Position, Step, locate


def explain(message: str, *, recipes: Sequence[Path], options: Iterable[str], arguments: Sequence[str]) -> str:
    """Say in one line what is wrong with a recipe or a command line.

    Args:
        message: What the parser says.
        recipes: Files given with `--config`, in order.
        options: Names of all settings at the top of a recipe and of the trainer.
        arguments: The command line, without the command.

    Returns:
        `file:line: what is wrong; what may have been meant`, without the file where the command line is at fault.
    """
    known = list(options)
    failure, hint = _likeliest([_first_unknown(failure, known) for failure in read(message)], known)
    place = _in_recipes(failure, recipes)
    if place is not None:
        file, position = place
        return f"{file}:{position.line}: {_problem(failure, position.path)}{hint}"
    return f"{_problem(failure, _typed(failure, arguments))}{hint}"


def _likeliest(failures: list[ParseFailure], options: list[str]) -> tuple[ParseFailure, str]:
    """Of several, the one whose type has a setting of a similar name; types that refused a value are put together."""
    hints = [(failure, _hint(failure, options)) for failure in failures]
    failure, hint = next((found for found in hints if found[1]), hints[0])
    if failure.reason == "value":
        wanted = dict.fromkeys(_plain(f.detail) for f in failures if f.reason == "value" and f.steps == failure.steps)
        failure = replace(failure, detail=" or ".join(wanted).replace(" or expected ", " or "))
    return failure, hint


def _first_unknown(failure: ParseFailure, options: list[str]) -> ParseFailure:
    """The parser names `modle.init_args.network` where `modle` is what it does not know."""
    if failure.reason != "unknown" or failure.steps or failure.option:
        return failure
    parts = failure.name.split(".")
    for end in range(1, len(parts)):
        name = ".".join(parts[:end])
        if not any(f"{option}.".startswith(f"{name}.") for option in options):
            return replace(failure, name=name)
    return failure


def _problem(failure: ParseFailure, shown: str) -> str:
    owner = next((f" of `{s.name.rpartition('.')[2]}`" for s in reversed(failure.steps) if s.kind == "class"), "")
    if failure.reason == "unknown":
        return f"`{shown}` is not an option{owner}"
    if failure.reason == "missing":
        return f"`{shown}` is required{owner and f' by {owner[4:]}'} and missing"
    if failure.reason == "value":
        return f"`{shown}` cannot be {failure.value!r}: {_plain(failure.detail)}"
    if failure.reason == "class":
        return f"`{shown}`: {failure.detail}"
    return f"`{shown}`: {failure.detail}" if failure.steps else failure.detail


def _plain(detail: str) -> str:
    """`Expected a <class 'int'>` as `expected int`."""
    if detail.startswith("Not a valid subclass of "):
        return f"expected a {detail.rpartition(' ')[2]}, by `class_path` and `init_args`"
    for old, new in (("Expected a ", "expected "), ("<class '", ""), ("'>", ""), ("typing.", "")):
        detail = detail.replace(old, new)
    return detail


def _hint(failure: ParseFailure, options: list[str]) -> str:
    if failure.reason == "missing":
        keys = [step.name for step in failure.steps if step.kind == "key"]
        dotted = ".".join([*keys, failure.name])
        return f"; pass `--{dotted} VALUE`, or write it into the recipe" if keys else "; pass a recipe with `--config`"
    if failure.reason == "class":
        class_path = next((s.name for s in reversed(failure.steps) if s.kind == "class"), failure.name)
        name = class_path.rpartition(".")[2]
        near = _near(name, classes_beside(class_path), "; did you mean `{}`?")
        absent = failure.detail.startswith("No module named")
        return near or ("; a module in this folder is found with `PYTHONPATH=.` before the command" if absent else "")
    if failure.reason != "unknown":
        return _near(failure.value or "", _choices(failure.detail), "; did you mean `{}`?")
    owners = [index for index, step in enumerate(failure.steps) if step.kind == "class"]
    group = [part for step in failure.steps[owners[-1] + 1 :] for part in step.name.split(".")] if owners else []
    *inner, name = failure.name.split(".") if failure.option else (*group, failure.name)
    if not owners:
        return _near(failure.name, options, "; did you mean `--{}`?" if failure.option else "; did you mean `{}`?")
    name = name.partition(".")[0]
    for depth, part in enumerate(inner):  # of a dotted option, the first part that is not there
        names = settings_of(failure.steps[owners[-1]].name, inner[:depth])
        if names and part not in names and part not in ("init_args", "class_path"):
            return _near(part, names, "; did you mean `{}`?")
    return _near(name, settings_of(failure.steps[owners[-1]].name, inner), "; did you mean `{}`?")


def _choices(detail: str) -> list[str]:
    """The words that a setting may be: of `expected Literal['id', 'numeric']`."""
    return [word for words in re.findall(r"Literal\[([^\]]*)\]", detail) for word in re.findall(r"'([^']+)'", words)]


def _near(name: str, names: Sequence[str], template: str) -> str:
    near = get_close_matches(name, names, n=1) or [longer for longer in names if name and longer.startswith(name)]
    return template.format(near[0]) if near else ""


def _in_recipes(failure: ParseFailure, recipes: Sequence[Path]) -> tuple[Path, Position] | None:
    """The place of the setting; of a missing one, the object that lacks it."""
    for file in reversed(recipes):
        try:
            position = _position(failure, file)
        except (yaml.YAMLError, OSError):
            continue
        if position is not None:
            return file, position
    return None


def _position(failure: ParseFailure, file: Path) -> Position | None:
    if failure.reason in ("missing", "class", "other"):
        owner = locate(file, failure.steps) if failure.steps else None
        if owner is None or not owner.path:
            return None
        named = locate(file, (*failure.steps, Step("key", "class_path")))
        settings = ".init_args" if named is not None and named.path == f"{owner.path}.class_path" else ""
        below = {"class": ".class_path", "missing": f"{settings}.{failure.name}", "other": ""}
        return Position(owner.line, owner.path + below[failure.reason])
    if failure.reason == "value":
        return locate(file, failure.steps, failure.value) or _short(failure, file)
    if failure.reason == "unknown" and failure.option is None:
        return _longest(file, failure)
    return None


def _short(failure: ParseFailure, file: Path) -> Position | None:
    """A list or mapping as value: its text in the message is Python's, so the key alone must do."""
    return locate(file, failure.steps) if (failure.value or "")[:1] in "[{(" else None


def _longest(file: Path, failure: ParseFailure) -> Position | None:
    """The parser names `netwrk.init_args.layers` where `netwrk` is what it does not know: the first part counts."""
    parts = failure.name.split(".")
    keys = range(1, len(parts) + 1) if failure.steps else range(len(parts), 0, -1)
    for end in keys:
        found = locate(file, (*failure.steps, Step("key", ".".join(parts[:end]))))
        if found is not None:
            return found
    return None


def _typed(failure: ParseFailure, arguments: Sequence[str]) -> str:
    """The option as it was typed, where one fits; else the key path that the parser went down."""
    if failure.option:
        top = next((step.name for step in failure.steps if step.kind == "key"), "")
        return f"--{top}.{failure.name}" if top else failure.option
    keys = [step.name for step in failure.steps if step.kind == "key"]
    full = ".".join([*keys, *([failure.name] if failure.name else [])])
    options = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    whole = [option for option in options if f"{full}.".startswith(f"{option[2:]}.") and option[2:] not in keys[:1]]
    last = [option for option in options if option.rpartition(".")[2] == full.rpartition(".")[2]]
    return next(iter([*whole, *last]), full)
