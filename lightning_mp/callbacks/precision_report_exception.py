"""Why a fit broke off: what is known of the exception it ended by."""

from __future__ import annotations

from typing import Any, Final

import lightning.pytorch as pl

from lightning_mp.precision.lint.finding import LintFinding
from lightning_mp.precision.lint.module_rules import findings_in_modules

# Words of torch that stand for something the lint knows beforehand, with the cure.
_KNOWN: Final = (
    ("could not create a primitive descriptor for the LSTM", "MP109", "an LSTM has no float16 kernel on a CPU"),
    ("unsafe to autocast", "MP101", "binary cross entropy of probabilities refuses to run under autocast on a GPU"),
    ("Attempting to unscale FP16 gradients", "MP107", "the scaler refuses the gradient of a parameter in float16"),
)


def exception_facts(error: BaseException, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
    """Type and text of an exception, and the lint's finding that it is, where it is one.

    Args:
        error: By which the fit ended.
        trainer: Whose fit it was.
        module: That was trained.

    Returns:
        `type`, `text`, and `known`: a finding of the lint as plain JSON, or `None`.
    """
    text = str(error)[:2000]
    facts: dict[str, Any] = {"type": type(error).__name__, "text": text, "known": None}
    for words, code, problem in _KNOWN:
        if words in text and not text.startswith("`"):
            device = trainer.strategy.root_device.type
            found = findings_in_modules(module, precision=str(trainer.precision), device_type=device)
            one = next((one for one in found if one.code == code), None)
            one = one or LintFinding(code=code, severity="error", place="", problem=problem)
            cure = one.cure.replace("[name]", f'["{one.place}"]') if one.place else one.cure
            place = f" (`{one.place}`)" if one.place else ""
            facts["known"] = {
                "code": code, "name": one.name, "severity": "error", "problem": one.problem + place, "cure": cure,
                "page": f"findings/{code}.md",
            }  # fmt: skip
            break
    return facts


def exception_line(facts: dict[str, Any]) -> str:
    """The first line of an exception's text, shortened; empty where it has none.

    Args:
        facts: As `exception_facts` gives them.
    """
    text = facts["text"].strip()
    first = text.splitlines()[0] if text else ""
    return first if len(first) <= 300 else f"{first[:297]}..."
