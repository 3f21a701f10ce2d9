"""Refuse a schema that a network cannot take."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import DENSE, INDEXED, FeatureSchema, Role


def require_inputs(schema: FeatureSchema, network: str, *, roles: Sequence[Role] | None = None) -> None:
    """Refuse a schema without inputs, or with a sequence, for a network that looks at one row at a time.

    Args:
        schema: Of the batches.
        network: The class that refuses, for the message.
        roles: Only features of these roles are inputs; left out, all are.

    Raises:
        ConfigurationError: There is no input, or a sequence among them.

    Example:
        >>> require_inputs(FeatureSchema(features=()), "DCNv2")
        Traceback (most recent call last):
        lightning_mp.errors.ConfigurationError: the schema has no feature that DCNv2 could take
        <BLANKLINE>
        hint: name at least one feature
    """
    every = schema.of_kind(*INDEXED, *DENSE, "multi_categorical", "sequence")
    taken = [feature for feature in every if roles is None or feature.role in roles]
    for feature in taken:
        if feature.kind == "sequence":
            raise ConfigurationError(
                f"{network} takes no `sequence` feature, and `{feature.name}` is one",
                f"leave `{feature.name}` out of the features, or take `SASRec`",
            )
    if not taken:
        of = "" if roles is None else f" of role {' or '.join(f'`{role}`' for role in roles)}"
        raise ConfigurationError(
            f"the schema has no feature{of} that {network} could take", "name at least one feature"
        )
