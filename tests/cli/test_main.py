"""Every way a command can end has its code and its words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from lightning_mp import __version__
from lightning_mp.cli.main import main
from lightning_mp.errors import DataError, LightningMPError, NumericError

COMMAND = [sys.executable, "-m", "lightning_mp"]
ALL = [
    "audit", "lint", "prepare", "fit", "validate", "test", "predict", "export", "check", "hardware", "serve", "recipe",
]  # fmt: skip


def run(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, **settings)


def test_help_names_every_command_and_imports_nothing_heavy():
    program = """
import sys
from lightning_mp.cli.main import main
code = main(["--help"])
heavy = "torch lightning numpy pyarrow onnx onnxruntime jinja2 yaml jsonargparse rich duckdb uvicorn asyncio".split()
print([name for name in heavy if name in sys.modules], code)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *help_text, last = result.stdout.splitlines()
    assert last == "[] 0"
    named = [line.split()[0] for line in help_text if line.startswith("  ")]
    assert named == ALL


def test_version():
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"lightning-mp {__version__}\n")


def test_no_command_shows_the_help_as_an_error(capsys):
    assert main([]) == 2
    assert "usage: lightning-mp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "problem", "hint"),
    [
        ("serv", "`serv` is not a command of lightning-mp", "did you mean `serve`?"),
        ("--verison", "`--verison` is not an option of lightning-mp", "did you mean `--version`?"),
        ("zzz", "`zzz` is not a command of lightning-mp", "run `lightning-mp --help`"),
    ],
)
def test_an_unknown_word_is_told_with_the_nearest_one(capsys, typed, problem, hint):
    assert main([typed]) == 2
    assert capsys.readouterr().err == f"error: {problem}\n\nhint: {hint}\n"


def make_command(tmp_path, monkeypatch, body: str) -> None:
    """A real module takes the place of `recipe`, to end as no shipped command does on demand."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"ending_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"def main(argv):\n    {body}\n")
    monkeypatch.setattr("lightning_mp.cli.main.import_module", lambda _: __import__(name))


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("return 0", 0, ""),
        ("return None", 0, ""),
        ("return 4", 4, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(143)", 143, ""),
        ("raise SystemExit('words')", 1, "words\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        (
            "raise FileNotFoundError(2, 'No such file or directory', 'a b')",
            5,
            "error: `a b`: No such file or directory",
        ),
        ("raise OSError(28, 'No space left on device')", 5, "error: No space left on device\n\nhint: check the path"),
        (
            "raise ValueError('line\\n\\nline')",
            1,
            "error: ValueError: line line\n\nhint: run it again with `--traceback`",
        ),
        ("raise RuntimeError('x' * 999)", 1, "error: RuntimeError: " + "x" * 297 + "...\n"),
    ],
)
def test_every_end_has_its_code_and_no_traceback(tmp_path, monkeypatch, capsys, body, code, error):
    make_command(tmp_path, monkeypatch, body)
    assert main(["recipe"]) == code
    shown = capsys.readouterr().err
    assert shown.startswith(error)
    assert "Traceback" not in shown
    assert bool(shown) == bool(error)


@pytest.mark.parametrize("error", [LightningMPError, DataError, NumericError])
def test_our_errors_end_with_their_code(tmp_path, monkeypatch, capsys, error):
    body = f"from lightning_mp.errors import {error.__name__}; raise {error.__name__}('it broke', 'mend it')"
    make_command(tmp_path, monkeypatch, body)
    assert main(["recipe"]) == error.exit_code
    assert capsys.readouterr().err == "error: it broke\n\nhint: mend it\n"


@pytest.mark.parametrize("arguments", [["--traceback", "recipe"], ["recipe", "--traceback"]])
def test_a_traceback_is_shown_to_who_asks(tmp_path, monkeypatch, capsys, arguments):
    make_command(tmp_path, monkeypatch, "raise ValueError(argv)")
    assert main(arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "error: ValueError: []" in shown


def test_a_reader_that_leaves_is_no_error():
    ours, theirs = os.pipe()
    process = subprocess.Popen([*COMMAND, "--help"], stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    os.close(ours)  # before the help can have been written: the interpreter is still starting
    _, error = process.communicate()
    assert (process.returncode, error) == (141, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_with_its_code_after_cleaning_up(tmp_path, number, code):
    program = f"""
import sys, time, types
import lightning_mp.cli.main as cli
from lightning_mp.artifacts import new_folder
def main(argv):
    with new_folder({str(tmp_path / "out")!r}):
        print("begun", flush=True)
        time.sleep(60)
sys.modules["lightning_mp.cli.recipe"] = types.SimpleNamespace(main=main)
sys.exit(cli.main(["recipe"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.1)  # into the sleep
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == code
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []
