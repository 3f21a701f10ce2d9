"""Every code of a run has a page, and every page says what it checks, why, and what to do."""

from __future__ import annotations

import pytest

from lightning_mp.callbacks.precision_report_codes import RUN_CODES


def test_the_pages_are_those_of_the_codes(checkout):
    pages = {path.stem for path in (checkout / "docs" / "findings").glob("MP2*.md")}
    assert pages == set(RUN_CODES)
    navigation = (checkout / "mkdocs.yml").read_text(encoding="utf-8")
    index = (checkout / "docs" / "findings" / "index.md").read_text(encoding="utf-8")
    assert all(f"findings/{code}.md" in navigation for code in RUN_CODES)
    assert all(f"| [{code}]({code}.md) | {name} |" in index for code, name in RUN_CODES.items())


@pytest.mark.parametrize("code", RUN_CODES)
def test_a_page_says_what_it_checks_why_and_what_to_do(checkout, code):
    page = (checkout / "docs" / "findings" / f"{code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {code}: {RUN_CODES[code]}\n")
    for heading in ("What it checks", "Why it matters", "Cure"):
        assert f"\n## {heading}\n" in page
