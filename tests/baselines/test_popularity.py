from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.popularity import popularity

codes = st.lists(st.integers(-1, 5), max_size=40)


@given(codes, codes)
@settings(deadline=None, max_examples=100)
def test_it_counts_training_rows(train, wanted):
    assert popularity(train, wanted).tolist() == [train.count(item) for item in wanted]
