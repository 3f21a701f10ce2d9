"""Where in a YAML file the setting stands that a parser complained about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml


@dataclass(frozen=True, slots=True)
class Step:
    """One step down a recipe.

    Args:
        kind: `key` goes down a mapping; `class` goes to the settings of an object with this `class_path`.
        name: A key, dotted for several, or a class path, of which the last part counts.
    """

    kind: Literal["key", "class"]
    name: str


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a recipe.

    Args:
        line: 1-based.
        path: The key path as one would type it: `trainer.callbacks.0.init_args.threshold`.
    """

    line: int
    path: str


def locate(file: Path, steps: Sequence[Step], value: str | None = None) -> Position | None:
    """First place in `file` that the steps lead to.

    Args:
        file: A YAML file that parses.
        steps: From the top of the recipe; the last one is the setting looked for.
        value: The text the setting must have, when it is known; a place with another value is passed over.

    Returns:
        `None` where the steps lead nowhere.
    """
    root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    if root is None:
        return None
    for path, line, node in _walk(root, list(steps), (), root.start_mark.line):
        if value is None or (isinstance(node, yaml.ScalarNode) and node.value == value):
            return Position(line + 1, ".".join(path))
    return None


Found = tuple[tuple[str, ...], int, yaml.Node]


def _walk(node: yaml.Node, steps: list[Step], path: tuple[str, ...], line: int) -> Iterator[Found]:
    if not steps:
        yield path, line, node
        return
    step, rest = steps[0], steps[1:]
    places = _by_key(node, step.name.split("."), path) if step.kind == "key" else _by_class(node, step.name, path, line)
    for found_path, found_line, found in places:
        yield from _walk(found, rest, found_path, found_line)


def _by_key(node: yaml.Node, keys: list[str], path: tuple[str, ...]) -> Iterator[Found]:
    for child_path, line, child in _children(node, path):
        if isinstance(node, yaml.MappingNode) and child_path[-1] == keys[0]:
            if len(keys) == 1:
                yield child_path, line, child
            else:
                yield from _by_key(child, keys[1:], child_path)
        elif isinstance(node, yaml.SequenceNode) or child_path[-1] in ("init_args", "dict_kwargs"):
            yield from _by_key(child, keys, child_path)  # the entries of a list, and an object's settings


def _by_class(node: yaml.Node, class_path: str, path: tuple[str, ...], line: int) -> Iterator[Found]:
    """Objects of this class at the node and under it; records of a list carry no class_path and all count."""
    named = [(p, n, c) for p, n, c in _children(node, path) if p[-1] == "class_path"]
    if named:
        _, class_line, value = named[0]
        if isinstance(value, yaml.ScalarNode) and value.value.rpartition(".")[2] == class_path.rpartition(".")[2]:
            yield path, class_line, node
        return
    if isinstance(node, yaml.ScalarNode) and node.value.rpartition(".")[2] == class_path.rpartition(".")[2]:
        yield path, line, node
        return
    if isinstance(node, yaml.MappingNode):
        yield path, line, node
    for child_path, child_line, child in _children(node, path):
        if isinstance(node, yaml.SequenceNode):
            yield from _by_class(child, class_path, child_path, child_line)


def _children(node: yaml.Node, path: tuple[str, ...]) -> Iterator[Found]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, str(key.value)), key.start_mark.line, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, str(index)), value.start_mark.line, value
