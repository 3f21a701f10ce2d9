"""`lightning-mp`: finds the command, and turns every way it can end into an exit code and readable words."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NoReturn

from lightning_mp.errors import ConfigurationError, LightningMPError

_TRAINER: Final = "lightning_mp.running.cli"
_COMMANDS: Final[dict[str, str]] = {
    "audit": "say what float16 will do to every column of a table",
    "lint": "find what float16 breaks in a module",
    "prepare": "read an event log and write its feature store",
    "fit": "train by a recipe, up to the exported bundle",
    "validate": "measure a checkpoint on the validation part",
    "test": "measure a checkpoint on the test part, beside baselines",
    "predict": "write a checkpoint's scores as Parquet",
    "export": "turn a checkpoint into a bundle",
    "check": "judge a bundle for a hardware target",
    "hardware": "show what this machine can do",
    "serve": "answer requests with a bundle",
    "recipe": "list, show or copy the shipped recipes",
}
_BY_TRAINER: Final = ("fit", "validate", "test", "predict")
_OPTIONS: Final = ("--help", "--version", "--traceback")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Errors raised on purpose are printed as `error: ...`, a blank line and `hint: ...`; nobody is shown a traceback
    who did not ask for it with `--traceback`, before or after the command.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code: 0 done, 1 a fault of ours, 2 usage, 3 data refused, 4 numeric stop, 5 environment or target,
        130 interrupted, 141 the reader of our output left, 143 terminated.

    Example:
        >>> main(["--version"])
        lightning-mp 0.1.0
        0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with_traceback = "--traceback" in arguments
    arguments = [argument for argument in arguments if argument != "--traceback"]
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as end:
        return _exit_code(end)
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except Exception as error:
        if with_traceback:
            traceback.print_exc()
        return _told(error)


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(_help(), file=sys.stderr)
        return 2
    command, *rest = arguments
    if command in ("-h", "--help"):
        print(_help())
        return 0
    if command == "--version":
        from lightning_mp import __version__

        print(f"lightning-mp {__version__}")
        return 0
    if command in _BY_TRAINER:
        # Read when torch is loaded: threads that spin while they wait made a step 9 times slower on a busy machine.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        return int(import_module(_TRAINER).main(arguments) or 0)  # it takes SIGTERM by itself, to save first
    if command in _COMMANDS:
        with _termination_raises():
            return int(import_module(f"lightning_mp.cli.{command}").main(rest) or 0)
    kind = "option" if command.startswith("-") else "command"
    near = get_close_matches(command, _OPTIONS if kind == "option" else _COMMANDS, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else "run `lightning-mp --help`"
    raise ConfigurationError(f"`{command}` is not {'an' if kind == 'option' else 'a'} {kind} of lightning-mp", hint)


def _help() -> str:
    width = max(map(len, _COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {words}" for name, words in _COMMANDS.items())
    return (
        "usage: lightning-mp [--version] [--traceback] COMMAND ...\n\n"
        f"{commands}\n\n"
        "`lightning-mp COMMAND --help` shows a command's options;\n"
        "`lightning-mp fit --config quickstart` is the shortest way from a log to a served model."
    )


@contextmanager
def _termination_raises() -> Iterator[None]:
    """SIGTERM ends the command as an exception, so that half-written files are removed on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001  # the signature of a signal handler
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    _complain(str(end.code))
    return 1


def _told(error: Exception) -> int:
    if isinstance(error, LightningMPError):
        _complain(f"error: {error}")
        return error.exit_code
    if isinstance(error, OSError) and error.strerror:
        place = f"`{error.filename}`: " if error.filename is not None else ""
        _complain(f"error: {place}{error.strerror}\n\nhint: check the path, its permissions and the space on its disk")
        return 5
    words = " ".join(str(error).split())
    shown = words if len(words) <= 300 else f"{words[:297]}..."
    _complain(
        f"error: {type(error).__name__}: {shown}\n\nhint: run it again with `--traceback` and report what it shows"
    )
    return 1


def _complain(text: str) -> None:
    with suppress(OSError):  # its reader may have left
        print(text, file=sys.stderr, flush=True)
