"""What a checkpoint says of the features it was trained on, under the key `lightning_mp`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import nn

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError, LightningMPError, SchemaError
from lightning_mp.schema import FeatureSchema

KEY = "lightning_mp"


def write(
    checkpoint: dict[str, Any], module: object, *, schema: FeatureSchema | None, network: nn.Module | None, trainer: Any
) -> None:
    """Add the record to a checkpoint: plain text only, so that it loads with `weights_only=True`.

    It is no part of the hyper-parameters: those are given to `__init__` again, which knows no schema.

    Args:
        checkpoint: What is being saved.
        module: The LightningModule.
        schema: What the network was built for; `None` for a network of the user's own that has none.
        network: The network.
        trainer: Its datamodule's store is named in the record, when there is one.
    """
    store = getattr(getattr(trainer, "datamodule", None), "store", None)
    checkpoint[KEY] = {
        "schema": None if schema is None else schema.to_json(),
        "digest": None if schema is None else schema.digest,
        "module": _path(module),
        "network": _path(getattr(network, "_orig_mod", network)),
        "store": None if store is None else str(store.path),
    }


def read(checkpoint: dict[str, Any], module: object, *, known: FeatureSchema | None = None) -> FeatureSchema | None:
    """The schema in a checkpoint that `write` was called on.

    Args:
        checkpoint: What is being loaded.
        module: The LightningModule that loads it.
        known: The data's schema, where there is one already.

    Returns:
        The schema; `None` when the network was built without one.

    Raises:
        ConfigurationError: The checkpoint is of another class.
        SchemaError: The schema in it was altered, or is not the data's.
    """
    record = checkpoint.get(KEY)
    if not isinstance(record, dict):
        raise ConfigurationError(
            f"the checkpoint has no `{KEY}` entry: no module of this package wrote it",
            "load it with the class that saved it",
        )
    if record.get("module") != _path(module):
        raise ConfigurationError(
            f"the checkpoint is of `{record.get('module')}`, and `{_path(module)}` is loading it",
            "load it with the class that saved it",
        )
    if record.get("schema") is None:
        return None
    schema = FeatureSchema.from_json(record["schema"])
    if schema.digest != record.get("digest"):
        raise SchemaError("the schema in the checkpoint does not match its digest", "take another checkpoint")
    if known is not None:
        try:
            known.require_equal(schema, here="the data", there="the checkpoint")
        except SchemaError as error:
            raise SchemaError(error.problem, _hint(module, schema)) from None
    return schema


def _hint(module: object, schema: FeatureSchema) -> str:
    """What to do about other data; where the store still has the checkpoint's, its version is named."""
    hint = "give the `--data` options that the fit had, or train again on this data"
    store = getattr(getattr(getattr(module, "_trainer", None), "datamodule", None), "store", None)
    if not isinstance(store, FeatureStore):
        return hint
    with suppress(LightningMPError):  # a damaged version says nothing here
        for version in reversed(store.versions()):
            if store.manifest_of(version).schema.digest == schema.digest:
                return f"{hint}: version {version} of the store `{store.path}` is like the checkpoint's data"
    return hint


def _path(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
