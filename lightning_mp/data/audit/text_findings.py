"""What is wrong with a column of text, by rule."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_mp.data.audit.column_names import is_key
from lightning_mp.data.audit.finding import Finding
from lightning_mp.data.audit.text_state import TextState
from lightning_mp.html_page.visible_text import visible


def text_findings(name: str, state: TextState) -> Iterator[Finding]:
    """Hold a column of text against the rules: numbers as text, mixed types, one text alone, nothing at all.

    Digits alone are left as they are: a key may well be text, and `007` is not `7`.

    Args:
        name: Of the column.
        state: Of the column.
    """
    there = state.rows - state.nulls - state.empty
    if not there:
        problem = f"all {state.rows:,} rows are missing or empty"
        yield Finding(code="MP013", severity="warning", column=name, problem=problem, cure="drop the column")
        return
    if state.distinct.count == 1:
        problem = f"all {there:,} rows hold one text"
        yield Finding(code="MP012", severity="warning", column=name, problem=problem, cure="drop the column")
    numeric = state.numbers + state.commas
    share = numeric / there
    if numeric == there and state.digits < there and not is_key(name):
        mark = "a decimal comma" if state.commas > state.numbers - state.digits else "a decimal point"
        yield Finding(
            code="MP022", severity="warning", column=name, value=1.0,
            problem=f"all {there:,} texts are numbers with {mark}",
            cure="write the column as numbers" + (", or read it with `decimal: ','`" if "comma" in mark else ""),
        )  # fmt: skip
    elif 0.5 <= share < 1.0 and not is_key(name):
        example = visible((state.example or "")[:40])
        yield Finding(
            code="MP023", severity="warning", column=name, value=share,
            problem=f"{numeric:,} of {there:,} texts are numbers, the others are not: `{example}`",
            cure="split it into two columns, or clean what writes it",
        )  # fmt: skip
