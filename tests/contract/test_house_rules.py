"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lightning_mp

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "lightning_mp"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "base", "core", "manager", "handler"}
MOST_LINES = 250


def named(path: Path) -> str:
    return path.relative_to(CHECKOUT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def says_nothing(name: str) -> bool:
    """Whether a snake_case or CamelCase name is, or ends in, a forbidden word (`data_utils`, `RunManager`)."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return bool(words) and (words[-1].lower() in FORBIDDEN_NAMES or words[0] == "Base")


def homes() -> dict[str, str]:
    for statement in tree(PACKAGE / "__init__.py").body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_HOMES":
            return ast.literal_eval(statement.value)
    raise AssertionError("the package front has no `_HOMES`")


def test_the_rules_see_the_package():
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_fits_on_five_screens(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{named(path)} has {lines} lines, at most {MOST_LINES} are allowed"


def test_nothing_is_called_by_a_name_that_says_nothing():
    found = [
        named(path)
        for path in SOURCES
        if any(says_nothing(Path(part).stem) for part in path.relative_to(CHECKOUT).parts)
    ]
    found += [
        f"{named(path)}:{node.lineno} class {node.name}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and says_nothing(node.name)
    ]
    assert not found


def test_what_is_private_to_a_file_stays_in_it():
    found = [
        f"{named(path)}:{node.lineno} {alias.name}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_mp")
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert not found


def public_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree(path).body:
        inside = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else [node]
        for function in inside:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                marks = {ast.unparse(mark) for mark in function.decorator_list}
                if (function.name == "__init__" or not function.name.startswith("_")) and "override" not in marks:
                    yield function


def test_no_public_signature_swallows_keywords():
    found = [
        f"{named(path)}:{function.lineno} {function.name}"
        for path in SOURCES
        for function in public_functions(path)
        if function.args.kwarg is not None
    ]
    assert not found


def test_only_the_package_front_lists_public_names():
    found = [
        named(path)
        for path in SOURCES
        for node in tree(path).body
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets)
    ]
    assert found == ["lightning_mp/__init__.py"]


def test_rooms_hold_a_docstring_and_nothing_else_in_their_front():
    found = [
        named(path)
        for path in SOURCES
        if path.name == "__init__.py"
        and path.parent != PACKAGE
        and (len(tree(path).body) != 1 or not ast.get_docstring(tree(path)))
    ]
    assert not found


@pytest.mark.parametrize("name", lightning_mp.__all__)
def test_a_public_name_resolves_and_has_a_docstring(name):
    value = getattr(lightning_mp, name)
    if name != "__version__":
        assert value.__module__ == homes()[name]
        assert (value.__doc__ or "").strip()


def test_the_public_names_are_told_alike_in_all_three_places():
    seen_by_type_checkers = {
        alias.asname: node.module
        for block in tree(PACKAGE / "__init__.py").body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen_by_type_checkers == homes()
    assert set(lightning_mp.__all__) == {*homes(), "__version__"} == set(dir(lightning_mp))
    with pytest.raises(AttributeError, match="has no attribute 'KeepInFP23'"):
        lightning_mp.KeepInFP23  # noqa: B018 (looking it up raises)


def shown_in_the_reference() -> set[str]:
    pages = (CHECKOUT / "docs" / "reference").rglob("*.md")
    return {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), flags=re.MULTILINE)}


def test_every_public_name_and_every_room_stands_in_the_reference():
    shown = shown_in_the_reference()
    public = {f"{home}.{name}" for name, home in homes().items()} | {"lightning_mp.errors"}
    assert not {name for name in public if not {name, name.rpartition(".")[0]} & shown}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"cli"}  # commands have a page of their own
    assert not {room for room in rooms if not any(name.startswith(f"lightning_mp.{room}.") for name in shown)}


def test_every_name_in_the_reference_is_there():
    for identifier in sorted(shown_in_the_reference()):
        found: object = importlib.import_module("lightning_mp")
        for part in identifier.split(".")[1:]:
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


def test_nothing_in_the_tree_knows_one_machine():
    machine = re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt|mnt|private|tmp/[a-z])/?[\w.-]*/\w")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.decode().split("\0"):
        path = CHECKOUT / name
        if not name or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{number}" for number, line in enumerate(text.splitlines(), 1) if machine.search(line)]
    assert not found


def test_the_wheel_names_what_it_ships():
    settings = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'recipes = "lightning_mp/_recipes"' in settings
    assert (PACKAGE / "py.typed").is_file()
