"""One thing in a module that a short format breaks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "note"]

LINT_CODES: Final[dict[str, str]] = {
    "MP101": "binary cross entropy of probabilities",
    "MP102": "mask value out of range",
    "MP103": "epsilon too small",
    "MP104": "loss summed over the batch",
    "MP105": "ids in a float tensor",
    "MP106": "metric in half precision",
    "MP107": "half parameters under mixed precision",
    "MP108": "sparse product in half precision",
    "MP109": "LSTM on a CPU",
    "MP110": "optimizer epsilon in true half precision",
    "MP111": "learning rate too high",
}
"""Name of each code. A code is never given to another finding."""

_CURES: Final[dict[str, str]] = {
    "MP101": "return logits and use `nn.BCEWithLogitsLoss` or `F.binary_cross_entropy_with_logits`",
    "MP102": "use `torch.finfo(x.dtype).min`, or -inf where a whole row is never masked",
    "MP103": "compute it in float32 (`x.float()`) or use at least 1e-4",
    "MP104": "use `reduction='mean'`, or divide by the number of rows before `backward`",
    "MP105": "carry ids in an integer tensor of their own",
    "MP106": "give the metric `preds.float()`, and leave its states in float32",
    "MP107": "leave the parameters in float32: autocast shortens what it computes",
    "MP108": "multiply in float32: `with torch.autocast(device_type, enabled=False)` around it, on `x.float()`",
    "MP109": "keep it in float32 with `KeepInFP32([name])`, or use `bf16-mixed` or `32-true` on a CPU",
    "MP110": "use `eps=1e-4`, or precision `16-mixed`, whose weights stay in float32",
    "MP111": "lower the peak to 5e-4 or less, and warm up with `LearningRateWarmup`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing in a module that a short format breaks.

    Args:
        code: Stable code, `MP101` and on; each has a page in the docs.
        severity: `"error"` for what stops or spoils a run, `"warning"` for what costs quality or may overflow, `"note"`
            for what depends on the numbers.
        place: `file:line`, or the name of a module, a parameter or an optimizer.
        problem: What was found, one sentence.
        done: What the usual cure also advises and the run has already, left out of `cure`: `"warmup"` or nothing.

    Example:
        >>> found = LintFinding(code="MP104", severity="warning", place="loss", problem="it is summed")
        >>> found.name, found.cure[:22]
        ('loss summed over the batch', "use `reduction='mean'`")
    """

    code: str
    severity: Severity
    place: str
    problem: str
    done: Literal["", "warmup"] = ""

    @property
    def name(self) -> str:
        """Name of the code."""
        return LINT_CODES[self.code]

    @property
    def cure(self) -> str:
        """One thing to do."""
        cure = _CURES[self.code]
        return cure.partition(", and warm up")[0] if self.done == "warmup" else cure

    def to_dict(self) -> dict[str, Any]:
        """The finding in plain Python, as JSON takes it."""
        plain = asdict(self)
        del plain["done"]
        return {**plain, "name": self.name, "cure": self.cure}

    def __str__(self) -> str:
        """In one line."""
        return f"{self.code} {self.place}: {self.problem}"
