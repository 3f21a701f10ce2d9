"""Features that know how the user's own earlier rows ended, which no AUC inside users can be read beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_mp.data.durations import duration_us
from lightning_mp.data.event_kinds import EVENT_KINDS
from lightning_mp.data.history import LABEL


def own_outcomes(source: Mapping[str, Any], *, span_us: int) -> tuple[str, ...]:
    """Names of the features made of what the user did at earlier rows, where the label is one of those deeds.

    Such a feature follows the outcome: among the rows of one user, those after a positive one have another value than
    those before it, whatever there is to learn. Drawn negatives stand at the time of their positive and share its
    value, so that nothing follows there.

    Args:
        source: Of the store's manifest, as `prepare` wrote it; a store that was made in another way says nothing of
            its features, and none is found.
        span_us: From the first to the last scored row, in microseconds. A history whose `delay` is longer knows none of
            their outcomes.

    Returns:
        The names, in the order of the features.

    Example:
        >>> bought = {"name": "bought_7d", "history": {"of": "order", "by": ["user"], "window": "7d"}}
        >>> settings = {"label": {"event": "order"}, "features": [bought], "columns": {"user": "customer"}}
        >>> own_outcomes({"settings": settings}, span_us=10**12)
        ('bought_7d',)
        >>> bought["history"]["by"] = ["item"]
        >>> own_outcomes({"settings": settings}, span_us=10**12)
        ()
    """
    settings = source.get("settings") or {}
    label, columns = settings.get("label") or {}, settings.get("columns") or {}
    if settings.get("negatives") is not None or "taken" in label:
        return ()
    outcomes = _outcomes(label, columns, source.get("counts") or {})
    of_user = {"user", "session", columns.get("user")}
    found = []
    for feature in settings.get("features") or ():
        past = feature.get("history")
        if not past or of_user.isdisjoint(past["by"]):
            continue
        reads = {past["of"], past.get("per"), f"column {past.get('column')}"}
        if reads & outcomes and duration_us(past.get("delay", "0s"), name="history.delay") <= span_us:
            found.append(str(feature["name"]))
    return tuple(found)


def _outcomes(label: Mapping[str, Any], columns: Mapping[str, Any], counts: Mapping[str, int]) -> set[str]:
    """What goes along with the label: all kinds but that of the rows, and the pause after; or the number."""
    if "value" in label:
        named = {label["value"], "value"} if label["value"] == columns.get("value") else {label["value"]}
        return {LABEL, *(f"column {name}" for name in named)}
    if "preference" in label:
        return {LABEL, *(kind for kind, weight in label["preference"].items() if weight > 0)}
    wide = "flags" in (columns.get("event") or ())
    rows = "impression" if wide or counts.get("impression") else "view"
    return {LABEL, "column dwell", *EVENT_KINDS} - {rows if wide else label.get("per") or rows}
