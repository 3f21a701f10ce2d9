"""Every code of the lint has a page, and every page says what it checks, why, and what to do."""

from __future__ import annotations

import pytest

from lightning_mp.precision.lint.finding import LINT_CODES


def test_the_pages_are_those_of_the_codes(checkout):
    pages = {path.stem for path in (checkout / "docs" / "findings").glob("MP1*.md")}
    assert pages == set(LINT_CODES)
    navigation = (checkout / "mkdocs.yml").read_text(encoding="utf-8")
    index = (checkout / "docs" / "findings" / "index.md").read_text(encoding="utf-8")
    assert all(f"findings/{code}.md" in navigation for code in LINT_CODES)
    assert all(f"| [{code}]({code}.md) | {name} |" in index for code, name in LINT_CODES.items())


@pytest.mark.parametrize("code", LINT_CODES)
def test_a_page_says_what_it_checks_why_and_what_to_do(checkout, code):
    page = (checkout / "docs" / "findings" / f"{code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {code}: {LINT_CODES[code]}\n")
    for heading in ("What it checks", "Why float16 cares", "Example", "Cure", "Source"):
        assert f"\n## {heading}\n" in page
