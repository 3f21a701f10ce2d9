"""Errors keep their text, their kind and their exit code on every way they travel."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

from lightning_mp import errors
from lightning_mp.errors import LightningMPError

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, LightningMPError)]
BUILTIN = {
    "ConfigurationError": (ValueError, 2),
    "SchemaError": (ValueError, 3),
    "DataError": (ValueError, 3),
    "LeakageError": (ValueError, 3),
    "ArtifactError": (OSError, 5),
    "BundleError": (OSError, 5),
    "ParityError": (ArithmeticError, 4),
    "NumericError": (ArithmeticError, 4),
    "EnvironmentMismatchError": (RuntimeError, 5),
    "MissingExtraError": (ImportError, 5),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_text_is_problem_blank_line_hint(kind):
    error = kind("`scale` must be positive, got -1.0", "leave `scale` out")
    assert str(error) == "`scale` must be positive, got -1.0\n\nhint: leave `scale` out"
    assert (error.problem, error.hint) == ("`scale` must be positive, got -1.0", "leave `scale` out")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_text_and_parts(kind, protocol):
    error = kind("column `prïce` holds 'n/a' in row 7", "map `n/a` to missing")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is kind
    assert (str(again), again.problem, again.hint) == (str(error), error.problem, error.hint)


def test_an_error_of_a_child_process_arrives_whole():
    code = (
        "import pickle, sys; from lightning_mp.errors import BundleError;"
        "sys.stdout.buffer.write(pickle.dumps(BundleError('`b` is cut', 'export again')))"
    )
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    error = pickle.loads(sent.stdout)
    assert (type(error), error.problem, error.hint) == (errors.BundleError, "`b` is cut", "export again")


def test_each_class_is_the_builtin_a_caller_expects_and_has_its_exit_code():
    assert {kind.__name__ for kind in CLASSES} - {"LightningMPError"} == set(BUILTIN)
    for name, (builtin, code) in BUILTIN.items():
        kind = getattr(errors, name)
        assert issubclass(kind, builtin), name
        assert kind.exit_code == code, name
        with pytest.raises(builtin):
            raise kind("problem", "hint")


def test_exit_codes_are_those_of_the_command_line():
    assert {kind.exit_code for kind in CLASSES} <= {2, 3, 4, 5}
