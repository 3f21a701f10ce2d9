"""Every block of the README and of the docs is run, or checked where a reader alone can run it."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from warnings import catch_warnings, simplefilter

import pytest
import yaml
from sybil import Sybil
from sybil.example import Example
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

from lightning_mp.cli.main import main

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "yaml", "json", "text", "mermaid"}
RUN = "<!-- run -->"
"""Stands above a console block whose commands are run for real; the others are read word by word."""


def named(page: Path) -> str:
    return page.relative_to(CHECKOUT).as_posix()


def console(example: Example) -> None:
    """Run the commands of a block that is marked so, and show that the others could be run."""
    lines = re.sub(r"\\\n", " ", example.parsed).splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert commands, "a console block shows commands, each after `$ `"
    marked = example.document.text[: example.region.start].rstrip().endswith(RUN)
    for command in commands:
        known_command(command)
        if marked:
            environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=500, check=False
            )
            assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
            example.namespace["output"] = done.stdout


def known_command(command: str) -> None:
    """Programs, extras, files and options that a command names are there."""
    for part in re.split(r"&&|\|", command):
        words = shlex.split(part)
        if words[:2] == ["pip", "install"]:
            extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            for word in words:
                assert set(re.findall(r"[\w-]+", (re.search(r"\[(.*)\]", word) or [""])[0])) <= set(extras), word
        if words[:1] == ["lightning-mp"]:
            known_subcommand(words)
        for word in words:
            if word.startswith(("recipes/", "docs/", "tests/", ".ci/", "constraints")):
                assert (CHECKOUT / word).exists(), f"`{word}` is not there"


def known_subcommand(words: list[str]) -> None:
    if len(words) == 1 or words[1].startswith("-"):
        return
    shown = help_text(words[1])
    for word in words[2:]:
        option = word.partition("=")[0]
        if option.startswith("--") and "." not in option:  # dotted ones are settings: the recipes' tests try those
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown), (
                f"`{words[1]}` has no option `{option}`"
            )


@cache
def help_text(subcommand: str) -> str:
    code, shown, complaint = in_this_process(subcommand, "--help")
    assert code == 0, f"`lightning-mp {subcommand} --help` ended with {code}: {complaint}"
    return shown


def in_this_process(*words: str) -> tuple[int, str, str]:
    """Exit code and output of a command that reads its arguments and does no more: seconds less than a new process."""
    with redirect_stdout(io.StringIO()) as shown, redirect_stderr(io.StringIO()) as complaint, catch_warnings():
        simplefilter("ignore")
        code = main(words)
    return code, shown.getvalue(), complaint.getvalue()


def settings(example: Example) -> None:
    """A recipe, or a part of one, is laid over the quickstart and read by the command line."""
    part = yaml.safe_load(example.parsed)
    if not isinstance(part, dict) or not {"model", "data", "trainer"} & set(part):
        return
    written = Path("part.yaml")
    written.write_text(example.parsed, encoding="utf-8")
    whole = {"model", "data"} <= set(part)
    configs = [written] if whole else [CHECKOUT / "recipes" / "quickstart.yaml", written]
    words = [word for config in configs for word in ("--config", str(config))]
    code, _, complaint = in_this_process("fit", *words, "--print_config")
    assert code == 0, complaint


def parsed_json(example: Example) -> None:
    json.loads(example.parsed)


EXAMPLES = Sybil(
    parsers=[
        PythonCodeBlockParser(),
        CodeBlockParser("console", console),
        CodeBlockParser("yaml", settings),
        CodeBlockParser("json", parsed_json),
        SkipParser(),
    ]
)


# Pages show what one writes on a GPU. Without one float16 is emulated, which is slow and right, and said in a warning.
@pytest.mark.filterwarnings("ignore:precision `16-mixed` was asked for")
@pytest.mark.filterwarnings("ignore:Precision .* is not supported by the model summary")  # Lightning, at every such fit
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    for example in EXAMPLES.parse(page):
        named_file = re.match(r"# ([\w-]+\.(?:py|yaml))\n", str(example.parsed))
        if named_file:  # a block that begins with a file's name is that file, for the blocks after it
            Path(named_file[1]).write_text(example.parsed, encoding="utf-8")
        example.evaluate()
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is(page):
    opened = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[::2]
    assert {word.split()[0] if word.strip() else "nothing" for word in opened} <= LANGUAGES


def test_a_wrong_block_is_found(tmp_path):
    wrong = {
        "python": "1 / 0",
        "console": "$ lightning-mp fit --confg recipes/quickstart.yaml",
        "yaml": "trainer:\n  max_epoch: 3",
        "json": '{"rows": [}',
    }
    for language, code in wrong.items():
        page = tmp_path / f"{language}.md"
        page.write_text(f"# Page\n\n```{language}\n{code}\n```\n", encoding="utf-8")
        (example,) = EXAMPLES.parse(page)
        with pytest.raises(Exception, match=r"zero|--confg|max_epoch|Expecting value"):
            example.evaluate()
