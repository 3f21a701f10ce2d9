"""One policy for three stages: trained precision, precision of the file, and what each device does with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from lightning_mp.errors import ConfigurationError
from lightning_mp.float_formats import FLOAT16
from lightning_mp.hardware.session import provider_options
from lightning_mp.hardware.targets import TARGETS, Target

FilePrecision = Literal["fp32", "fp16-storage", "fp16-mixed", "int8-dynamic"]
Precision = Literal["auto", "fp32", "fp16-storage", "fp16-mixed", "int8-dynamic"]

INPUT: Final = "@input"
OUTPUT: Final = "@output"
HALF: Final = ("fp16-storage", "fp16-mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPolicy:
    """From the precision of the training to what a device computes; the file holds it, never a runtime's flag.

    Args:
        file: Number formats in `model.onnx`. `"fp32"`; `"fp16-storage"`: embedding tables in float16, arithmetic in
            float32; `"fp16-mixed"`: those, and linear layers in float16 where real rows leave room for it;
            `"int8-dynamic"`: weights of linear layers in int8, whose scores depend on the other rows of a batch;
            `"auto"`: float16 layers for a device that computes in float16, float16 tables for any other, and each
            time the next wider format where the gates refuse it.
        keep_in_fp32: Layers that stay float32 under `"fp16-mixed"`: `"@input"` and `"@output"`, which are found from
            one pass, and names or patterns such as `"tower.*"`.
        largest_activation: Largest magnitude that a value of a float16 layer may have on real rows. The default is an
            eighth of float16's largest value: room for rows that nobody has seen yet.
        tf32: Whether devices of compute capability 8.0 and above may multiply float32 matrices in TF32. It is faster
            and moves logits by about 1e-3; parity is measured without.
        trained: Precision of the training, as its Trainer calls it; only noted.

    Raises:
        ConfigurationError: `file` is none of these, or `largest_activation` is not positive.

    Example:
        >>> PrecisionPolicy().attempts(Target.named("cuda-sm80")), PrecisionPolicy().attempts(Target.named("cpu-x86"))
        (('fp16-mixed', 'fp16-storage', 'fp32'), ('fp16-storage', 'fp32'))
    """

    file: Precision = "auto"
    keep_in_fp32: tuple[str, ...] = (INPUT, OUTPUT)
    largest_activation: float = FLOAT16.largest / 8
    tf32: bool = False
    trained: str | None = None

    def __post_init__(self) -> None:
        if self.file not in get_args(Precision):
            known = ", ".join(f"'{name}'" for name in get_args(Precision))
            raise ConfigurationError(f"`precision` must be one of {known}, got {self.file!r}", "leave it out")
        if not self.largest_activation > 0:
            raise ConfigurationError(
                f"`largest_activation` must be positive, got {self.largest_activation}", "leave it out for 8188"
            )

    @classmethod
    def of(cls, precision: str | PrecisionPolicy) -> PrecisionPolicy:
        """A policy from its short name; a policy is given back as it is.

        Raises:
            ConfigurationError: There is none of that name.
        """
        return precision if isinstance(precision, PrecisionPolicy) else cls(file=precision)  # type: ignore[arg-type]  # checked when it is made

    def attempts(self, target: Target) -> tuple[FilePrecision, ...]:
        """Precisions of the file to try for a target, the preferred one first."""
        if self.file != "auto":
            return (self.file,)
        return ("fp16-mixed", "fp16-storage", "fp32") if target.float16 else ("fp16-storage", "fp32")

    def run_time(self, used: FilePrecision) -> dict[str, dict[str, Any]]:
        """What each target does with a file: its provider, the options to open it with, and the arithmetic.

        Args:
            used: Precision of the file.
        """
        return {name: self._on(target, used) for name, target in TARGETS.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite limit is written as `None`."""
        limit = self.largest_activation
        kept = list(self.keep_in_fp32)
        return {**asdict(self), "keep_in_fp32": kept, "largest_activation": limit if limit < float("inf") else None}

    def _on(self, target: Target, used: FilePrecision) -> dict[str, Any]:
        tf32 = self.tf32 and target.tf32
        single = "TF32" if tf32 else "float32"
        arithmetic = f"float16 and {single}" if used == "fp16-mixed" and target.float16 else single
        if used == "int8-dynamic":
            arithmetic = f"int8 and {single}"
        options = provider_options(target.provider, tf32=tf32)
        return {"provider": target.provider, "options": options, "arithmetic": arithmetic}
