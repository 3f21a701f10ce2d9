"""Kinds of events: folded, mapped, counted, and refused with the nearest name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data.event_kinds import EventKinds
from lightning_mp.errors import ConfigurationError, DataError


def translate(kinds, *batches):
    line, out = 2, []
    for names in batches:
        lines = np.arange(line, line + len(names))
        line += len(names)
        translated, kept = kinds.translate(pa.array(names, type=pa.string()), lines)
        out += [kind for kind, keep in zip(translated.to_pylist(), kept, strict=True) if keep]
    return out


def test_case_and_surrounding_space_do_not_count():
    kinds = EventKinds({"Purchase ": "order", "page": "ignore", "x": None})
    found = translate(kinds, ["view", " VIEW\t", "purchase", "PURCHASE"], ["page", "X", "View"], [])
    assert found == ["view", "view", "order", "order", "view"]
    assert kinds.counts == {"view": 3, "order": 2}
    assert kinds.ignored == {"page": 1, "X": 1}
    kinds.require_known("log.csv", "event")


def test_unknown_kinds_are_listed_with_counts_and_the_nearest_name():
    kinds = EventKinds()
    translate(kinds, ["view", "clik"], ["wishlist", "wishlist", "view", "wishlist"])
    with pytest.raises(DataError) as caught:
        kinds.require_known("log.csv", "type")
    assert caught.value.problem == (
        "`log.csv`, column `type`: unknown kinds of event: `wishlist` (3 rows, first at line 4), "
        "`clik` (1 row, first at line 3); known rows: view 2; kinds are impression, view, click, cart, order"
    )
    assert caught.value.hint == (
        "map each in `event_map`, to the kind that it is, or as `wishlist: ignore` to drop its rows"
    )


def test_a_near_name_is_offered_and_a_long_list_is_cut():
    kinds = EventKinds()
    translate(kinds, [*["Clicks"] * 9, *"abcdefg"])
    with pytest.raises(DataError, match="and 3 more") as caught:
        kinds.require_known("log.csv", "type")
    assert "as in `clicks: click`" in caught.value.hint


def test_a_map_to_no_kind():
    with pytest.raises(ConfigurationError) as caught:
        EventKinds({"purchase": "ordr"})
    assert "`purchase` leads to 'ordr'" in caught.value.problem
    assert caught.value.hint == "did you mean `order`?"
