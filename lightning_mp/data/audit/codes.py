"""The codes of findings: stable names that a page of the docs stands behind."""

from __future__ import annotations

from typing import Final

CODES: Final[dict[str, str]] = {
    "MP001": "overflow",
    "MP002": "flushed to zero",
    "MP003": "subnormal",
    "MP004": "wide range",
    "MP005": "many zeros",
    "MP006": "sparse bursts",
    "MP007": "spread far from the mean",
    "MP008": "rounding error",
    "MP009": "id or count in a float",
    "MP010": "impossible value",
    "MP011": "sentinel",
    "MP012": "constant",
    "MP013": "all missing",
    "MP014": "missing values",
    "MP015": "missing share changes",
    "MP016": "not finite",
    "MP017": "duplicate column",
    "MP018": "near-duplicate column",
    "MP019": "drift",
    "MP020": "tells the label",
    "MP021": "target in disguise",
    "MP022": "numbers as text",
    "MP023": "mixed types",
    "MP024": "not audited",
    "MP025": "time out of range",
    "MP026": "beyond float32",
}
"""Name of each code. A code is never given to another finding."""
