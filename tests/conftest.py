"""What every test may ask for, and what no test may leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two cores run the suite: threads of a tiny fit cost more than they give. Read when torch and NumPy are first loaded.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# A job that a script starts in the background has SIGINT ignored, and so would every command that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: a loaded machine must not turn a right answer into a failure.
settings.register_profile(
    "untimed", deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

CHECKOUT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-browser", action="store_true", help="fail, rather than skip, where Chromium is absent")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    if item.get_closest_marker("browser"):
        _browser(item.config)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds `pyproject.toml`, `recipes/` and `docs/`."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data sets, beside the checkout; the test is skipped where there is none."""
    folder = CHECKOUT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data: `{folder}` is absent")
    return folder


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> Path:
    """Path of the browser; skipped where it is absent, failed under `--require-browser`."""
    return _browser(request.config)


def _browser(config: pytest.Config) -> Path:
    for name in BROWSERS:
        if found := shutil.which(name):
            return Path(found)
    reason = "no browser: `apt-get install chromium` brings it"
    if config.getoption("--require-browser"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own, so that nothing is ever written into the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _environment_restored() -> Iterator[None]:
    """A test's changes to the environment end with it (Lightning writes its seed and ranks there)."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    """A thread that would keep the process alive fails the test that started it."""
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon and t.is_alive()]
    for thread in left:
        thread.join(timeout=5)
    left = [thread.name for thread in left if thread.is_alive()]
    assert not left, f"threads left running: {', '.join(left)}"


@pytest.fixture(autouse=True)
def _torch_settings_restored() -> Iterator[None]:
    """Process-wide switches of torch that a test turned are turned back."""
    yield
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_default_dtype"):
        return
    torch.set_default_dtype(torch.float32)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    if torch.get_float32_matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
    torch.set_grad_enabled(True)
