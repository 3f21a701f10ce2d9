"""Finding: one thing that an audit found in one column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lightning_mp.data.audit.codes import CODES

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""The gravest first: an error spoils training in the chosen policy, a warning costs quality, a note tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that an audit found in one column.

    Args:
        code: Stable: `MP001`.
        severity: `error`, `warning` or `note`.
        column: Its name, as it stands in the source.
        problem: What was found, with the numbers.
        cure: One thing to do.
        value: The number that a limit was held against, where there is one.
        limit: That limit.
    """

    code: str
    severity: Severity
    column: str
    problem: str
    cure: str
    value: float | None = None
    limit: float | None = None

    @property
    def name(self) -> str:
        """The code's name: `overflow`."""
        return CODES[self.code]

    @property
    def page(self) -> str:
        """Its page in the docs, from the docs' root."""
        return f"findings/{self.code}.md"
