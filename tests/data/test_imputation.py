"""Modes of groups against a loop over rows."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.imputation import ModeFill, fill_modes, fit_modes

VALUES = st.sampled_from(["acme", "bolt", "core", None])
IDS = st.sampled_from(["1", "2", "3", None])
PATHS = st.sampled_from(["home", "home.bed", "home.bed.big", "toys.cars", "toys", None])
ROWS = st.lists(st.tuples(VALUES, IDS, PATHS, st.booleans()), min_size=1, max_size=40)


def mode(values):
    """The most frequent one, of equally frequent ones the smallest."""
    counts = Counter(value for value in values if value is not None)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else None


def slow(rows):
    """Filled values, and where each came from."""
    training = [row for row in rows if row[3]]
    filled, sources = [], Counter()
    for value, number, path, _ in rows:
        if value is not None:
            filled.append(value)
            continue
        candidates = [("id", mode(v for v, i, _, _ in training if i == number and i is not None))]
        if path is not None:
            parts = path.split(".")
            for up in range(len(parts)):
                above = ".".join(parts[: len(parts) - up])
                inside = [v for v, _, p, _ in training if p is not None and (p == above or p.startswith(f"{above}."))]
                candidates.append(("path" if not up else f"path, {up} up", mode(inside)))
        overall = mode(row[0] for row in training)
        candidates.append(("all rows" if overall else "nothing: it stays unknown", overall))
        source, found = next((s, m) for s, m in candidates if m is not None or s.startswith("nothing"))
        filled.append(found)
        sources[source] += 1
    return filled, dict(sources)


@given(ROWS)
def test_fill_equals_a_loop_over_rows(rows):
    values, ids, paths = (pa.chunked_array([pa.array([row[p] for row in rows], type=pa.string())]) for p in range(3))
    groups = {"id": ids, "path": paths}
    fill = fit_modes(values, groups, np.array([row[3] for row in rows]))
    filled, counts = fill_modes(fill, values, groups)
    assert (filled.to_pylist(), counts) == slow(rows)
    assert ModeFill.from_record(json.loads(json.dumps(fill.to_record()))) == fill


def test_integers_and_several_chunks():
    values = pa.chunked_array([[7, 7, None], [9, None]], type=pa.int64())
    groups = {"shop": pa.chunked_array([[1, 1, 1], [2, 3]], type=pa.int64())}
    filled, counts = fill_modes(fit_modes(values, groups, np.ones(5, dtype=bool)), values, groups)
    assert filled.to_pylist() == [7, 7, 7, 9, 7]
    assert counts == {"shop": 1, "all rows": 1}
