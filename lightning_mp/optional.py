"""Import an optional package, or say which extra brings it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from lightning_mp.errors import MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    Args:
        module: Dotted name, such as `"uvicorn"`.
        extra: Name of the extra of this package that installs it.

    Returns:
        The module.

    Raises:
        MissingExtraError: The module is not installed.
        ModuleNotFoundError: The module is installed and something that it imports is not.

    Example:
        >>> require("json", "serve").__name__
        'json'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(
            f"`{module}` is needed here and is not installed",
            f"run `pip install 'lightning-mp[{extra}]'`",
        ) from error
