"""The transform and the valid range of a numeric feature, those that the audit advises included."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.advice import advise
from lightning_mp.data.audit.column_names import words_of
from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.statistics import column_statistics
from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.data.chosen_rows import chosen_rows
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import TransformKind

_PIECE = 1 << 17


def advised_transform(
    spec: FeatureSpec, training: npt.NDArray[np.float64]
) -> tuple[TransformKind, dict[str, float], str]:
    """What to do with a feature.

    Args:
        spec: As declared.
        training: (N,) raw numbers of the training part, NaN where missing.

    Returns:
        The transform's kind; `valid_from` and `valid_to`, those that there are; and why, where that was advised.

    Raises:
        ConfigurationError: There is a valid range, and a missing value is refused.
    """
    limits = {name: value for name in ("valid_from", "valid_to") if (value := getattr(spec, name)) is not None}
    if spec.transform != "auto":
        _require_rule(spec, limits)
        return spec.transform or "zscore", limits, ""
    known = chosen_rows(training, ~np.isnan(training))
    thresholds = Thresholds()
    ruled_out = set(words_of(spec.column or spec.name)) & set(thresholds.never_negative)
    reason = ""
    if ruled_out and "valid_from" not in limits and (known < 0).any():
        limits["valid_from"] = 0.0
        reason = f"{np.count_nonzero(known < 0):,} below 0 count as missing; "
    _require_rule(spec, limits)
    lowest, highest = limits.get("valid_from", -np.inf), limits.get("valid_to", np.inf)
    inside = chosen_rows(known, (known >= lowest) & (known <= highest))
    state = NumberState()
    for start in range(0, len(inside), _PIECE):
        state.update(inside[start : start + _PIECE])
    advice = advise(None, state, column_statistics(state), thresholds, "fp16")
    return advice.transform.kind, limits, f" (advised: {reason}{advice.reason})"


def _require_rule(spec: FeatureSpec, limits: dict[str, float]) -> None:
    if limits and spec.missing_rule == "refuse":
        problem = f"feature `{spec.name}` has a valid range, and `missing: refuse` for what lies outside"
        raise ConfigurationError(problem, "use `missing: mean`, `median` or `constant`")
