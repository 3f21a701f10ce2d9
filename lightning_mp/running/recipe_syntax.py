"""What makes a YAML file no recipe, found before the parser reads it."""

from __future__ import annotations

from pathlib import Path

import yaml

from lightning_mp.errors import ConfigurationError

_START = "start from a shipped recipe: `lightning-mp recipe copy quickstart`"


def require_recipe(path: Path) -> None:
    """Refuse a file that cannot be a recipe, or that YAML would read otherwise than it looks.

    Of two equal keys YAML keeps the last one without a word, and an alias inside its own anchor has no end.

    Args:
        path: An existing file.

    Raises:
        ConfigurationError: The file is not UTF-8 text, not YAML, empty, no mapping of keys to settings, gives a key
            twice, or holds an alias of what it stands in. Line and key are named.
    """
    try:
        root = yaml.compose(path.read_bytes().decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ConfigurationError(
            f"`{path}` is not UTF-8 text: byte {error.start:,} is {byte:#04x}", "save the recipe as UTF-8"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        tab = "'\\t'" in str(error.problem)
        hint = "mend the line (what YAML notices there may begin above); names with `?`, `:`, `#` or `[` need quotes"
        hint = "indent with blanks" if tab else hint
        line = mark.line + 1 if mark else 1
        raise ConfigurationError(f"{path}:{line}: this is not YAML: {error.problem}", hint) from error
    except yaml.YAMLError as error:
        what = str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: this is not YAML: {what}", "save the recipe as plain text") from error
    if root is None:
        raise ConfigurationError(
            f"`{path}` is empty", "start from a shipped recipe: `lightning-mp recipe copy quickstart`"
        )
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "one value"
        raise ConfigurationError(
            f"{path}:{root.start_mark.line + 1}: a recipe has keys such as `model:` and `data:`, this is {kind}",
            _START,
        )
    _require_tree(root, path, (), (), set())


def _require_tree(
    node: yaml.Node, path: Path, keys: tuple[str, ...], above: tuple[yaml.Node, ...], done: set[int]
) -> None:
    if any(node is outer for outer in above):
        raise ConfigurationError(
            f"{path}:{node.start_mark.line + 1}: `{'.'.join(keys)}` is an alias of what it stands in",
            "write the value out",
        )
    if id(node) in done:  # an alias of a part that was looked at; aliases of aliases would take exponentially long
        return
    done.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _require_tree(value, path, (*keys, str(index)), (*above, node), done)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name != "<<" and name in lines:
            raise ConfigurationError(
                f"{path}:{line}: `{'.'.join((*keys, name))}` stands here and in line {lines[name]}; YAML would keep "
                "the last one without a word",
                "delete one of the two",
            )
        lines[name] = line
        _require_tree(value, path, (*keys, name), (*above, node), done)
