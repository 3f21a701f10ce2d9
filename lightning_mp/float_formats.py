"""Range and precision of the number formats that mixed precision moves between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """One binary floating-point format, round half to even, with subnormals.

    Args:
        name: Its name as torch and NumPy spell it.
        exponent_bits: Bits of the exponent.
        fraction_bits: Stored bits of the fraction; the leading one is implied.

    Example:
        >>> FLOAT16.largest, FLOAT16.smallest_normal, FLOAT16.smallest_subnormal
        (65504.0, 6.103515625e-05, 5.960464477539063e-08)
        >>> FLOAT16.overflow_from, FLOAT16.flush_until
        (65520.0, 2.9802322387695312e-08)

    Source:
        IEEE 754-2019, sections 3.3 and 4.3.1; both ties were checked against NumPy's and torch's casts.
    """

    name: str
    exponent_bits: int
    fraction_bits: int

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest finite value."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def largest(self) -> float:
        """Largest finite value."""
        return (2.0 - 2.0**-self.fraction_bits) * 2.0**self.largest_exponent

    @property
    def smallest_normal(self) -> float:
        """Smallest magnitude that keeps all fraction bits; below it values are subnormal and lose bits."""
        return 2.0 ** (1 - self.largest_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest magnitude other than zero."""
        return 2.0 ** (1 - self.largest_exponent - self.fraction_bits)

    @property
    def overflow_from(self) -> float:
        """Smallest magnitude that a cast turns into infinity (half a step above `largest`)."""
        return (2.0 - 2.0 ** -(self.fraction_bits + 1)) * 2.0**self.largest_exponent

    @property
    def flush_until(self) -> float:
        """Largest magnitude that a cast turns into zero: the tie at half the smallest subnormal included."""
        return self.smallest_subnormal / 2

    @property
    def relative_step(self) -> float:
        """Distance between 1 and the next value above it; half of it bounds the relative rounding error."""
        return 2.0**-self.fraction_bits

    @property
    def exact_integers_until(self) -> int:
        """Largest integer up to which every integer is represented."""
        return int(2 ** (self.fraction_bits + 1))


FLOAT16: Final = FloatFormat(name="float16", exponent_bits=5, fraction_bits=10)
BFLOAT16: Final = FloatFormat(name="bfloat16", exponent_bits=8, fraction_bits=7)
TF32: Final = FloatFormat(name="tf32", exponent_bits=8, fraction_bits=10)
FLOAT32: Final = FloatFormat(name="float32", exponent_bits=8, fraction_bits=23)
