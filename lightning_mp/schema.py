"""FeatureSchema: the precision contract that store, checkpoint and bundle carry and compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from lightning_mp.errors import SchemaError

Kind = Literal["id", "categorical", "numeric", "vector", "multi_categorical", "sequence"]
Role = Literal["user", "item", "context", "label", "time", "weight"]
Missing = Literal["unknown", "constant", "mean", "median", "mode", "refuse"]
TransformKind = Literal["none", "zscore", "signed_log", "log1p", "log1p_zscore", "log1p_flag", "linear", "quantile",
                        "power_of_two", "robust_clip"]  # fmt: skip

VERSION = 1
_AGAIN = "write it again with `lightning-mp prepare`"
_OTHER = "install the version of lightning-mp that wrote it"
INDEXED: tuple[Kind, ...] = ("id", "categorical")
"""Kinds that become one column of `ids`."""
DENSE: tuple[Kind, ...] = ("numeric", "vector")
"""Kinds that become columns of `dense`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A fitted transform of a numeric feature: its kind and constants, nothing more.

    Args:
        kind: What `lightning_mp.data.transforms` does with the constants.
        constants: Fitted numbers by name, such as `{"mean": 3.2, "std": 1.1}`.
    """

    kind: TransformKind = "none"
    constants: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What one feature is, from the event log to the ONNX input.

    Args:
        name: The feature's name: the key of a request, and the column in the event log unless mapped.
        kind: What its values are.
        role: What they describe.
        source_dtype: Arrow's name of the raw type: `"string"`, `"int64"`, `"double"`.
        stored_dtype: NumPy's name of the type in the store: `"int32"`, `"float16"`, `"float32"`.
        compute_dtype: NumPy's name of the type the network computes it in.
        width: Columns it takes in its matrix; for `multi_categorical` and `sequence` the longest list kept.
        vocabulary_size: Rows of its embedding table, the unknown row 0 included; `None` for numbers.
        vocabulary_digest: sha256 of the vocabulary, in order; `None` for numbers.
        transform: What was done to the raw number before it was stored.
        missing: What stands in for a missing value: row 0, `missing_value`, the training mean or median (fitted
            into `missing_value`), the training mode of its group (kept in the store), or a refusal.
        missing_value: The raw number that replaces a missing one, before `transform`.
        window_us: Length of the window of a feature made of earlier events, in microseconds; `None` for all time.
        delay_us: Time until an event may be known to it, in microseconds; `None` for a feature made of no events.
    """

    name: str
    kind: Kind
    role: Role
    source_dtype: str
    stored_dtype: str
    compute_dtype: str = "float32"
    width: int = 1
    vocabulary_size: int | None = None
    vocabulary_digest: str | None = None
    transform: Transform = field(default_factory=Transform)
    missing: Missing = "unknown"
    missing_value: float | None = None
    window_us: int | None = None
    delay_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSchema:
    """The features of a store, checkpoint or bundle, in the order of their columns.

    Args:
        features: One entry a feature; names are unique.
        version: Of this record; a newer one is refused.

    Raises:
        SchemaError: A name stands twice, or an indexed feature has no vocabulary size.

    Example:
        >>> user = Feature(name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32",
        ...                vocabulary_size=11)
        >>> schema = FeatureSchema(features=(user,))
        >>> FeatureSchema.from_json(schema.to_json()) == schema
        True
        >>> schema.difference(FeatureSchema(features=(replace(user, vocabulary_size=12),)))
        ('user', 'vocabulary_size', 11, 12)
    """

    features: tuple[Feature, ...]
    version: int = VERSION

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for feature in self.features:
            if feature.name in seen:
                problem = f"feature `{feature.name}` stands twice in the schema"
                raise SchemaError(problem, "give each feature its own name")
            seen.add(feature.name)
            if feature.kind in (*INDEXED, "multi_categorical", "sequence") and not feature.vocabulary_size:
                problem = f"feature `{feature.name}` is of kind `{feature.kind}` and has no vocabulary size"
                raise SchemaError(problem, _AGAIN)

    def of_kind(self, *kinds: Kind) -> tuple[Feature, ...]:
        """Features of these kinds, labels, times and weights left out, in schema order."""
        return tuple(f for f in self.features if f.kind in kinds and f.role in ("user", "item", "context"))

    @property
    def ids(self) -> tuple[Feature, ...]:
        """Features that make the columns of `ids`."""
        return self.of_kind(*INDEXED)

    @property
    def dense(self) -> tuple[Feature, ...]:
        """Features that make the columns of `dense`."""
        return self.of_kind(*DENSE)

    @property
    def dense_width(self) -> int:
        """Columns of `dense`."""
        return sum(feature.width for feature in self.dense)

    @property
    def labels(self) -> tuple[Feature, ...]:
        """Label columns, in schema order."""
        return tuple(f for f in self.features if f.role == "label")

    @property
    def digest(self) -> str:
        """sha256 of the schema's JSON with sorted keys: equal exactly when every field of every feature is."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def feature(self, name: str) -> Feature:
        """The feature called `name`.

        Raises:
            SchemaError: There is none.
        """
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SchemaError(
            f"there is no feature `{name}`; there are {', '.join(f'`{f.name}`' for f in self.features)}",
            "use one of these names",
        )

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, NaN refused."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> FeatureSchema:
        """Read what `to_json` wrote.

        Raises:
            SchemaError: It is not a schema, is newer than this package, or holds a field it does not know.
        """
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise SchemaError(f"the schema is not JSON: {error}", _AGAIN) from error
        if not isinstance(record, dict) or not isinstance(record.get("features"), list):
            raise SchemaError("the schema holds no list of `features`", _AGAIN)
        version = record.get("version")
        if version != VERSION:
            raise SchemaError(f"the schema is of version {version!r}, this package reads version {VERSION}", _OTHER)
        return cls(features=tuple(_feature(entry) for entry in record["features"]), version=version)

    def difference(self, other: FeatureSchema) -> tuple[str, str, object, object] | None:
        """First feature and field that differ, with both values; `None` when the schemas are equal.

        Returns:
            Feature name, field name, the value here, the value in `other`. A feature that only one side has
            is reported with field `"presence"`, one that stands elsewhere with field `"position"`.
        """
        names, others = [f.name for f in self.features], [f.name for f in other.features]
        for name in [*names, *(n for n in others if n not in names)]:
            if name not in names or name not in others:
                return name, "presence", name in names, name in others
        for index, (mine, theirs) in enumerate(zip(self.features, other.features, strict=True)):
            if mine.name != theirs.name:
                return mine.name, "position", index, others.index(mine.name)
            for entry in fields(Feature):
                here, there = getattr(mine, entry.name), getattr(theirs, entry.name)
                if here != there:
                    return mine.name, entry.name, here, there
        return None

    def require_equal(self, other: FeatureSchema, *, here: str, there: str) -> None:
        """Refuse to go on when the two schemas differ.

        Args:
            other: The schema at the other side of the joint.
            here: What carries this schema, as the user knows it: ``"checkpoint `last.ckpt`"``.
            there: What carries the other one.

        Raises:
            SchemaError: They differ; the first feature and field that do are named with both values.
        """
        found = self.difference(other)
        if found is None:
            return
        name, entry, mine, theirs = found
        raise SchemaError(
            f"feature `{name}` differs in `{entry}`: {here} has {mine!r}, {there} has {theirs!r}",
            "use the store that the model was trained on, or train again on this one",
        )

    def extends(self, old: FeatureSchema) -> bool:
        """Whether this schema is `old` with vocabularies that only grew.

        That the old entries still stand at the same rows is for the holder of the vocabularies to check: the
        schema knows sizes and digests alone.
        """
        if len(self.features) != len(old.features):
            return False
        for new_feature, old_feature in zip(self.features, old.features, strict=True):
            size, sha256 = new_feature.vocabulary_size, new_feature.vocabulary_digest
            grown = replace(old_feature, vocabulary_size=size, vocabulary_digest=sha256)
            if grown != new_feature or (size or 0) < (old_feature.vocabulary_size or 0):
                return False
        return True


def _feature(entry: dict[str, Any]) -> Feature:
    known = {f.name for f in fields(Feature)}
    unknown = sorted(set(entry) - known)
    if unknown:
        raise SchemaError(f"feature `{entry.get('name')}` has an unknown field `{unknown[0]}`", _OTHER)
    for name, allowed in (("kind", get_args(Kind)), ("role", get_args(Role))):
        if entry.get(name) not in allowed:
            problem = f"feature `{entry.get('name')}` has {name} {entry.get(name)!r}; known are {', '.join(allowed)}"
            raise SchemaError(problem, _AGAIN)
    return Feature(**{**entry, "transform": Transform(**entry.get("transform", {}))})


def columns(features: Iterable[Feature]) -> list[str]:
    """One name a matrix column: the feature's own, or `name[i]` for the i-th column of a wide one."""
    return [f.name if f.width == 1 else f"{f.name}[{i}]" for f in features for i in range(f.width)]
