"""AuditGate: what the features of a recipe must be worth before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_mp.data.audit.score import FORMAT_OF, Policy
from lightning_mp.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditGate:
    """What the features of a recipe must be worth, as they will be fed to the network, before anything is trained.

    Args:
        policy: What the network computes in: `fp16` or `bf16`.
        fail_under: Compatibility score that their table must reach, from 0 to 100.
        cure: Give features that lie below it the advised transform (`transform: auto`), instead of refusing at once.

    Raises:
        ConfigurationError: The policy is unknown, or the score outside its range.
    """

    policy: Policy = "fp16"
    fail_under: float = 80.0
    cure: bool = False

    def __post_init__(self) -> None:
        if self.policy not in FORMAT_OF:
            raise ConfigurationError(f"`audit.policy` must be fp16 or bf16, got {self.policy!r}", "use fp16")
        if not 0 <= self.fail_under <= 100:
            problem = f"`audit.fail_under` must lie from 0 to 100, got {self.fail_under!r}"
            raise ConfigurationError(problem, "use 80")
