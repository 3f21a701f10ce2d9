"""How a module comes to its network: from the data's schema, or from that of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.models.network_factory import build_network
from lightning_mp.schema import FeatureSchema


def built(
    network: nn.Module | None,
    factory: Callable[[FeatureSchema], nn.Module] | None,
    *,
    known: FeatureSchema | None,
    schema: FeatureSchema,
) -> nn.Module | None:
    """The network for `schema`: made where it is not there yet, else what is there, its schema compared.

    Args:
        network: What is there.
        factory: What makes it; `None` for a network that was given whole.
        known: The schema that it was made for.
        schema: Of the data, or of a checkpoint.

    Raises:
        ConfigurationError: The network cannot be made from a schema.
        SchemaError: It was made for another schema; feature and field are named.
    """
    if network is None and factory is not None:
        return build_network(factory, schema)
    if known is not None:
        known.require_equal(schema, here="the model", there="the data")
    return network


def trainers_schema(trainer: Any, *, example: str, network: nn.Module | None) -> FeatureSchema | None:
    """The schema of the Trainer's datamodule; `None` without a Trainer, when a checkpoint brings it.

    Args:
        trainer: The module's own, or `None`.
        example: A module with a built network, for the error.
        network: What is there already.

    Raises:
        ConfigurationError: There is a Trainer, and neither a schema nor a network.
    """
    if trainer is None:  # load_from_checkpoint: on_load_checkpoint builds
        return None
    schema: FeatureSchema | None = getattr(getattr(trainer, "datamodule", None), "schema", None)
    if schema is None and network is None:
        raise ConfigurationError(
            "the network cannot be built: the Trainer has no datamodule with a `schema`",
            f"pass `datamodule=RankingDataModule(...)`, or give a built network: `{example}`",
        )
    return schema


def require_built(network: nn.Module | None) -> nn.Module:
    """The network.

    Raises:
        ConfigurationError: It is not built yet.
    """
    if network is None:
        raise ConfigurationError("the network is not built yet", "call `build(schema)` first")
    return network


def plain_hyperparameters(hparams: Any) -> None:
    """Take out what is no plain value, so that a checkpoint needs no pickle.

    What LightningCLI keeps is plain text; a class or a partial is not.
    """
    for name in [name for name, value in hparams.items() if callable(value)]:
        del hparams[name]


def require_methods(network: nn.Module | None, *methods: str, like: str) -> None:
    """Refuse a network without the methods that a module calls.

    Args:
        network: As built.
        methods: As they are called, such as `encode(history)`.
        like: A network that has them.

    Raises:
        ConfigurationError: One is missing; it is named.
    """
    for method in methods:
        if not callable(getattr(network, method.partition("(")[0], None)):
            problem = f"network `{type(network).__name__}` has no method `{method}`"
            raise ConfigurationError(problem, f"use `{like}`, or add it")
