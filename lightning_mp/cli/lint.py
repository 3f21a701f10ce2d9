"""`lightning-mp lint MODULE:CLASS`: what float16 breaks in a module, before it is trained."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.errors import ArtifactError, ConfigurationError

if TYPE_CHECKING:
    from lightning_mp.precision.lint.finding import LintFinding

_RANKS = {"error": 0, "warning": 1, "note": 2}
_COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}
_PRECISIONS = ("16-mixed", "16-true", "bf16-mixed", "bf16-true")


def main(argv: Sequence[str]) -> int:
    """Lint a class, the classes that a recipe names, or a checkpoint's module; print the findings, the gravest first.

    Args:
        argv: Arguments after `lint`.

    Returns:
        0; 3 when a finding is as grave as `--fail-on`.

    Raises:
        LightningMPError: The class, recipe or checkpoint cannot be read.
    """
    parser = CommandParser("lint", "Find what float16 breaks in a module, before it is trained.")
    parser.add_argument("target", nargs="*", metavar="MODULE:CLASS", help="package.module:Class, or file.py:Class")
    parser.add_argument("--config", metavar="FILE", help="a recipe: the classes and the optimizer that it names")
    parser.add_argument("--checkpoint", type=Path, metavar="CKPT", help="a checkpoint of a module of this package")
    parser.add_argument("--precision", choices=_PRECISIONS, default=None,
                        help="as the Trainer has it (default: the recipe's, else 16-mixed)")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where it will run (default: cuda)")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="CODE", help="leave a code out; may be given often"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON and nothing else")
    parser.add_argument("--fail-on", choices=("error", "warning", "note", "never"), default="error",
                        help="end with 3 on a finding as grave as this (default: error)")  # fmt: skip
    options = parser.parse_args(argv)
    if not (options.target or options.config or options.checkpoint):
        raise ConfigurationError("`lightning-mp lint`: nothing to lint is given", "give `package.module:Class`")

    from lightning_mp.precision.lint.finding import LINT_CODES

    for code in options.ignore:
        if code not in LINT_CODES:
            raise ConfigurationError(f"`--ignore {code}`: no such code", f"use one of {', '.join(LINT_CODES)}")
    found: dict[tuple[str, str], LintFinding] = {}
    for one in _findings(options):
        if one.code not in options.ignore:
            found.setdefault((one.code, one.place), one)
    findings = sorted(found.values(), key=lambda one: (_RANKS[one.severity], one.code, one.place))
    if options.json:
        print(json.dumps([one.to_dict() for one in findings], indent=1))
    else:
        _show(findings)
    limit = _RANKS.get(options.fail_on, -1)
    return 3 if any(_RANKS[one.severity] <= limit for one in findings) else 0


def _findings(options: Any) -> Iterator[LintFinding]:
    from lightning_mp.precision.lint.lint import lint
    from lightning_mp.precision.lint.read_source import has_source

    precision = options.precision or "16-mixed"
    for target in options.target:
        judged = _built(_module(target))
        kind = judged if isinstance(judged, type) else type(judged)
        if not has_source(kind):
            print(f"note: the source of `{target}` cannot be read, what its code does is not judged", file=sys.stderr)
        yield from lint(judged, precision=precision, device_type=options.device)
    if options.config:
        yield from _in_recipe(options)
    if options.checkpoint:
        from lightning_mp.cli.export import load_checkpoint

        yield from lint(load_checkpoint(options.checkpoint), precision=precision, device_type=options.device)


def _class(target: str) -> Any:
    home, colon, name = target.rpartition(":") if ":" in target else target.rpartition(".")
    if not (colon and name):
        raise ConfigurationError(f"`{target}` names no class", "write `package.module:Class` or `file.py:Class`")
    try:
        if home.endswith(".py"):
            path = Path(home)
            spec = spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise ConfigurationError(f"`{target}`: there is no file `{home}`", "check the path")
            module = sys.modules[path.stem] = module_from_spec(spec)
            sys.path.insert(0, str(path.resolve().parent))
            spec.loader.exec_module(module)
        else:
            if "" not in sys.path:
                sys.path.insert(0, "")
            module = import_module(home)
        return getattr(module, name)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # a user's file runs, and may end as it likes: that is no clean lint
        said = (
            " ".join(str(error).split())
            if isinstance(error, ImportError | AttributeError | SyntaxError)
            else repr(error)
        )
        raise ConfigurationError(f"`{target}` cannot be imported: {said}", "run where it is installed") from error


def _module(target: str) -> Any:
    """A class of modules, or a module, as `package.module:Class` names it."""
    from torch import nn

    named = _class(target)
    if isinstance(named, nn.Module) or (isinstance(named, type) and issubclass(named, nn.Module)):
        return named
    what = "a class" if isinstance(named, type) else f"of type `{type(named).__name__}`"
    problem = f"`{target}` is {what}, and no `nn.Module` or `LightningModule`"
    raise ConfigurationError(problem, "name the class of the module that is trained")


def _built(kind: Any) -> Any:
    """The module, where its class needs no arguments; else the class, whose source is read alone."""
    if not isinstance(kind, type):
        return kind
    try:
        return kind()
    except (Exception, SystemExit):  # a user's class: it needs arguments, data or a GPU
        return kind


def _in_recipe(options: Any) -> Iterator[LintFinding]:
    import yaml

    from lightning_mp.precision.lint.lint import lint
    from lightning_mp.precision.lint.module_rules import of_adams_kind, setting_findings
    from lightning_mp.running.recipe import find

    path = Path(find(options.config))
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ArtifactError(f"`{path}` cannot be read: {error}", "give another recipe") from error
    recipe = recipe if isinstance(recipe, Mapping) else {}
    precision = options.precision or _precision_of(recipe)
    if not precision.startswith(("16", "bf16")):
        print(f"`{path.name}` trains in {precision}: give `--precision 16-mixed` to judge it for that", file=sys.stderr)
    warmed, limit = _warm_up_of(recipe)
    for class_path, arguments in _class_paths(recipe.get("model")):
        kind = _class(class_path)
        if isinstance(kind, type) and of_adams_kind(kind.__name__) and "lr" in arguments:
            lr, eps = min(float(arguments["lr"]), limit), float(arguments.get("eps", 1e-8))
            yield from setting_findings(class_path, lr, eps, precision=precision, warmed=warmed)
        elif isinstance(kind, type):
            yield from lint(kind, precision=precision, device_type=options.device)


def _class_paths(node: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, Mapping):
        if isinstance(node.get("class_path"), str):
            arguments = node.get("init_args")
            yield node["class_path"], arguments if isinstance(arguments, Mapping) else {}
        for value in node.values():
            yield from _class_paths(value)
    elif isinstance(node, list):
        for value in node:
            yield from _class_paths(value)


def _warm_up_of(recipe: Mapping[str, Any]) -> tuple[bool, float]:
    """Whether a recipe has a `LearningRateWarmup`, and the rate that it lets no step exceed."""
    trainer = recipe.get("trainer")
    for class_path, arguments in _class_paths(trainer.get("callbacks") if isinstance(trainer, Mapping) else None):
        if class_path.rpartition(".")[2] == "LearningRateWarmup":
            return True, float(arguments.get("max_lr") or "inf")
    return False, float("inf")


def _precision_of(recipe: Mapping[str, Any]) -> str:
    """The precision that a recipe trains in; float16 where it leaves that to the hardware."""
    trainer = recipe.get("trainer")
    trainer = trainer if isinstance(trainer, Mapping) else {}
    for class_path, arguments in _class_paths(trainer.get("plugins")):
        if "precision" in class_path.lower():
            given = str(arguments.get("precision", "auto"))
            return "16-mixed" if given == "auto" else given
    return str(trainer.get("precision") or "32-true")


def _show(findings: Sequence[LintFinding]) -> None:
    import os

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = None if Console().is_terminal else int(os.environ.get("COLUMNS", "140"))
    console = Console(width=width, highlight=False)
    if not findings:
        console.print(Text("no findings"))
        return
    table = Table(box=box.SIMPLE, expand=False)
    for name in ("severity", "code", "place", "found", "cure"):
        table.add_column(name, overflow="fold")
    for one in findings:
        table.add_row(
            Text(one.severity, style=_COLOURS[one.severity]),
            one.code,
            Text(one.place),
            Text(one.problem),
            Text(one.cure),
        )
    console.print(table)
