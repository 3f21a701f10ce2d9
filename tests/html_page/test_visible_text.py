"""What cannot be seen is written out, and nothing else is changed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.html_page.visible_text import visible


@pytest.mark.parametrize("text", ["user id", "Größe", "日本語", "می‌خواهم", "👩‍🔬", "a\\nb", "<b>"])
def test_what_can_be_seen_stays(text):
    assert visible(text) == text


@given(st.text(alphabet=st.characters()))
def test_nothing_unseen_is_left_and_the_rest_is_kept(text):
    shown = visible(text)
    shown.encode()
    assert shown
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    kept = [c for c in text if visible(c) == c]
    remaining = iter(shown)
    assert all(c in remaining for c in kept)
