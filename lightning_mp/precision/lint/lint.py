"""Find what float16 breaks in a module, before it is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer

from lightning_mp.precision.lint.finding import LintFinding
from lightning_mp.precision.lint.module_rules import findings_in_modules, findings_in_optimizers
from lightning_mp.precision.lint.read_source import findings_in_source
from lightning_mp.precision.lint.traced_rules import LintMode

_ORDER: Final = {"error": 0, "warning": 1, "note": 2}


def lint(
    module: nn.Module | type,
    *,
    precision: str = "16-mixed",
    device_type: str = "cuda",
    optimizers: Iterable[Optimizer] = (),
    forward: Callable[[], Any] | None = None,
) -> tuple[LintFinding, ...]:
    """Find what float16 breaks in a module: in its source, its layers, its optimizers, and one forward pass.

    Read is the source of its class and of the classes of its submodules, with their bases, and of the functions of the
    same package that they call; what belongs to torch or Lightning, or has no source, is passed over.

    Args:
        module: A module; or a class, of which only the source is read.
        precision: As the Trainer has it; float32 has no findings.
        device_type: Where it will run.
        optimizers: Those that train it.
        forward: Runs the module once; None for no such run. What it raises is passed over.

    Returns:
        The gravest first; each place and code once.

    Example:
        >>> class Sums(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.loss = nn.MSELoss(reduction="sum")
        >>> [found.code for found in lint(Sums())]
        ['MP104']
    """
    if not precision.startswith(("16", "bf16")):
        return ()
    half_range = precision.startswith("16")
    if isinstance(module, type):
        return _sorted(findings_in_source([module], half_range=half_range))
    kinds = list(dict.fromkeys(type(inner) for inner in module.modules()))
    found = findings_in_source(kinds, half_range=half_range)
    in_source = {one.code for one in found}
    found += [
        one
        for one in findings_in_modules(module, precision=precision, device_type=device_type)
        # A loss that a class makes is seen in its source too, where the line is known.
        if not (one.code in ("MP101", "MP104") and one.code in in_source)
    ]
    found += findings_in_optimizers(optimizers, precision=precision)
    if forward is not None:
        mode = LintMode(half_range=half_range)
        with suppress(Exception), mode:  # a user's module: what cannot run is judged without it
            forward()
        seen = {one.code for one in found}
        found += [one for one in mode.findings.values() if one.code not in seen]
    return _sorted(found)


def _sorted(found: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    return tuple(sorted(found, key=lambda one: (_ORDER[one.severity], one.code, one.place)))
