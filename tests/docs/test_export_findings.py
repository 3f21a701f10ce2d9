"""Every code of an export has a page, and what `check` and `parity.json` say bears one."""

from __future__ import annotations

import pytest

from lightning_mp.export.codes import EXPORT_CODES, code_of, code_of_gate
from lightning_mp.export.parity import GATES


def test_the_pages_are_those_of_the_codes(checkout):
    pages = {path.stem for path in (checkout / "docs" / "findings").glob("MP3*.md")}
    assert pages == set(EXPORT_CODES)
    navigation = (checkout / "mkdocs.yml").read_text(encoding="utf-8")
    index = (checkout / "docs" / "findings" / "index.md").read_text(encoding="utf-8")
    assert all(f"findings/{code}.md" in navigation for code in EXPORT_CODES)
    assert all(f"| [{code}]({code}.md) | {name} |" in index for code, name in EXPORT_CODES.items())


@pytest.mark.parametrize("code", EXPORT_CODES)
def test_a_page_says_what_it_checks_why_by_what_example_and_what_to_do(checkout, code):
    page = (checkout / "docs" / "findings" / f"{code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {code}: {EXPORT_CODES[code]}\n")
    for heading in ("What it checks", "Why it matters", "Example", "Cure", "Source"):
        assert f"\n## {heading}\n" in page


def test_every_gate_and_every_question_has_a_code():
    assert {code_of_gate(gate.path) for gates in GATES.values() for gate in gates} <= set(EXPORT_CODES)
    assert {code_of(name) for name in EXPORT_CODES.values()} == set(EXPORT_CODES)
