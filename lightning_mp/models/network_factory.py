"""From what a user gave as `network` to a module, or to an error that says what to give."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import FeatureSchema


def build_network(factory: Callable[[FeatureSchema], nn.Module], schema: FeatureSchema) -> nn.Module:
    """Call `factory(schema)`.

    Args:
        factory: A network class, a partial of one, or a function.
        schema: Of the data.

    Raises:
        ConfigurationError: It takes no schema as its first argument, still lacks an argument, or gives no module.
    """
    name = _name(factory)
    try:
        inspect.signature(factory).bind(schema)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"network `{name}` cannot be built from a schema alone: {error}",
            "let its first parameter be `schema`, and give the others with `functools.partial` or `init_args`",
        ) from error
    try:
        network = factory(schema)
    except Exception as error:
        first = next(iter(inspect.signature(factory).parameters.values()))
        if first.name == "schema" or "FeatureSchema" in str(first.annotation):
            raise  # it knows what it is given, so this is its own
        problem = f"network `{name}` got the schema as its first parameter `{first.name}`: {error}"
        raise ConfigurationError(problem, "let its first parameter be `schema`, the data's `FeatureSchema`") from error
    if not isinstance(network, nn.Module):
        raise ConfigurationError(f"network `{name}` gave a {type(network).__name__}", "return an `nn.Module`")
    return network


def _name(factory: object) -> str:
    inner = getattr(factory, "func", factory)
    return getattr(inner, "__qualname__", type(inner).__name__)
