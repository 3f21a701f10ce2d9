from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.row_slices import row_slices


@pytest.mark.parametrize("share", [0.05, 0.2, 0.9])
def test_rows_fall_where_training_says(share):
    rng = np.random.default_rng()
    train_user, train_item = rng.integers(30, size=400), rng.zipf(1.5, size=400) % 50
    user, item = rng.integers(60, size=300), rng.integers(80, size=300)
    slices = row_slices(train_user, train_item, user, item, head_share=share)
    counts = Counter(train_item.tolist())
    ranked = sorted(counts, key=lambda code: (-counts[code], code))
    head = set(ranked[: -int(-share * len(ranked) // 1)])
    known = set(train_user.tolist())
    assert slices["new users"].tolist() == [u not in known for u in user.tolist()]
    assert slices["new items"].tolist() == [i not in counts for i in item.tolist()]
    assert slices["head items"].tolist() == [i in head for i in item.tolist()]
    assert slices["tail items"].tolist() == [i in counts and i not in head for i in item.tolist()]
    assert (slices["new users"] ^ slices["known users"]).all()
    of_items = slices["new items"].astype(int) + slices["head items"] + slices["tail items"]
    assert (of_items == 1).all()


def test_all_is_new_where_there_was_no_training():
    slices = row_slices([], [], [1, 2], [3, 4])
    assert slices["new users"].all()
    assert slices["new items"].all()


def test_a_share_of_more_than_all_is_refused():
    with pytest.raises(ConfigurationError, match="`head_share` must be between 0 and 1, got 20"):
        row_slices([1], [1], [1], [1], head_share=20)
