"""Every code has a page, and every page a code that its example shows."""

from __future__ import annotations

import pytest

from lightning_mp.data.audit.codes import CODES


def test_the_pages_are_those_of_the_codes(checkout):
    pages = {path.stem for path in (checkout / "docs" / "findings").glob("MP0*.md")}
    assert pages == set(CODES)
    navigation = (checkout / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(f"findings/{code}.md" in navigation for code in CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_page_says_what_it_checks_why_and_what_to_do(checkout, code):
    page = (checkout / "docs" / "findings" / f"{code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {code}: {CODES[code]}\n")
    for heading in ("What it checks", "Why float16 cares", "Example", "Cure"):
        assert f"\n## {heading}\n" in page
    assert f'found.code == "{code}"' in page
