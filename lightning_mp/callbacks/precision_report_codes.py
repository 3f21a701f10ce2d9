"""The codes of what a run can be found to have done: stable names that a page of the docs stands behind."""

from __future__ import annotations

from typing import Final

RUN_CODES: Final[dict[str, str]] = {
    "MP201": "loss scale collapsed",
    "MP202": "gradients underflow",
    "MP203": "normalisation statistics poisoned",
    "MP204": "batch not finite",
    "MP205": "weights not finite",
    "MP206": "learning rate spike",
    "MP207": "loss diverged",
    "MP208": "loss fluctuates",
    "MP209": "many steps skipped",
    "MP210": "loss scale can only fall",
    "MP211": "most steps clipped",
    "MP212": "layer not in float32",
    "MP213": "input and output layers not kept",
    "MP214": "no bundle",
    "MP215": "metric undefined",
    "MP216": "ended by an exception",
    "MP217": "features not audited",
    "MP218": "GPU memory nearly full",
    "MP219": "no step taken",
    "MP220": "warm-up too long",
    "MP221": "learning rate far too high",
}
"""Name of each code. A code is never given to another finding."""
