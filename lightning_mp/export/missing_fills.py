"""What stands in for missing values beyond the schema: modes of categories, and indicators of absence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `check_bundle` reads this room without a store, and so without pyarrow
    from lightning_mp.data.store.feature_store import FeatureStore


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFills:
    """Rules for missing values that a store keeps beside its schema.

    Attributes:
        modes: The mode of all training rows, by feature. Modes by group are not here: a graph knows no groups.
        indicators: By the name of an indicator the feature whose absence it tells.
    """

    modes: Mapping[str, str | int] = field(default_factory=dict)
    indicators: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: FeatureStore) -> MissingFills:
        """Read what `prepare` noted in a store; nothing of a store that was written otherwise."""
        source, names = store.manifest.source, {feature.name for feature in store.schema.features}
        modes = {name: record["overall"] for name, record in source.get("fills", {}).items()}
        specs = source.get("settings", {}).get("features") or []
        pairs = {f"{spec['name']}_missing": spec["name"] for spec in specs if spec.get("indicator")}
        return cls(
            modes={name: mode for name, mode in modes.items() if name in names and mode is not None},
            indicators={name: told for name, told in pairs.items() if {name, told} <= names},
        )


NO_FILLS = MissingFills()
