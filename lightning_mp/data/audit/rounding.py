"""Round float32 numbers to float16 or bfloat16 by arithmetic on their bits, as a cast would."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.working_memory import WorkingMemory
from lightning_mp.float_formats import BFLOAT16, FLOAT16, FLOAT32, FloatFormat

Float32 = npt.NDArray[np.float32]

FORMATS: Final = (FLOAT16, BFLOAT16)
"""The formats that a column is cast to in an audit."""
_HALF: Final = np.float32(0.75)
"""Its neighbours are 2^-24 apart, as float16's subnormal numbers are: added and taken off, it rounds to them."""


def rounded(values: Float32, number_format: FloatFormat) -> Float32:
    """The nearest numbers of a format, ties to even, as float32; infinite from `overflow_from` on.

    Some three times as fast as NumPy's cast there and back, with the same bits.

    Args:
        values: (N,) finite or infinite, not NaN.
        number_format: float16 or bfloat16.

    Example:
        >>> rounded(np.array([2049.0, 65520.0, 2.0**-25], dtype=np.float32), FLOAT16).tolist()
        [2048.0, inf, 0.0]
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    drop = FLOAT32.fraction_bits - number_format.fraction_bits
    out = np.right_shift(bits, np.uint32(drop))
    np.bitwise_and(out, np.uint32(1), out=out)
    np.add(out, bits, out=out)
    np.add(out, np.uint32((1 << (drop - 1)) - 1), out=out)
    np.bitwise_and(out, np.uint32((0xFFFFFFFF << drop) & 0xFFFFFFFF), out=out)
    result: Float32 = out.view(np.float32)
    if number_format.exponent_bits == FLOAT32.exponent_bits:
        return result  # the carry into the exponent made infinities by itself
    size = np.abs(values)
    if size.size and size.max() >= np.float32(number_format.overflow_from):
        over = size >= np.float32(number_format.overflow_from)
        result[over] = np.copysign(np.float32(np.inf), values[over])
    small = size < np.float32(number_format.smallest_normal)
    if small.any():
        result[small] = np.copysign((size[small] + _HALF) - _HALF, values[small])
    return result


def rounded_sizes(
    size: Float32, number_format: FloatFormat, *, largest: float, memory: WorkingMemory, smallest: float = 0.0
) -> Float32:
    """The same as `rounded` for numbers without a sign, in half as many steps.

    Args:
        size: (N,) not negative, below `overflow_from`.
        number_format: float16 or bfloat16.
        largest: The largest of them.
        memory: To work in; its `power` and `cast` are overwritten.
        smallest: None of them is smaller.

    Returns:
        (N,) in the memory of `cast`.
    """
    cast, power = memory.cast[: len(size)], memory.power[: len(size)]
    drop = FLOAT32.fraction_bits - number_format.fraction_bits
    if largest >= 2.0 ** (FLOAT32.largest_exponent - drop):
        np.copyto(cast, rounded(size, number_format))
        return cast
    # Around 1.5 * 2^drop times its own power of two, the neighbours of float32 lie as far apart as those of the format
    # lie around a number: added and taken off, it rounds. Subnormal numbers all lie equally far apart.
    np.bitwise_and(size.view(np.uint32), np.uint32(0x7F800000), out=power.view(np.uint32))
    np.multiply(power, np.float32(1.5 * 2.0**drop), out=power)
    if smallest < number_format.smallest_normal:
        subnormal = 1.5 * 2.0**FLOAT32.fraction_bits * number_format.smallest_subnormal
        np.maximum(power, np.float32(subnormal), out=power)
    np.add(size, power, out=cast)
    return np.subtract(cast, power, out=cast)


def top_halves(values: Float32, out: npt.NDArray[np.int64], *, sign: bool = True) -> npt.NDArray[np.int64]:
    """The upper 16 bits of each number: sign, exponent and seven bits of the fraction.

    Args:
        values: (N,) without gaps in memory.
        out: (N,) to write into; not the memory of `values`.
        sign: Whether the sign is kept; else it is 0.
    """
    halves = values.view(np.uint16)
    np.copyto(out, halves[1::2] if np.little_endian else halves[::2])
    return out if sign else np.bitwise_and(out, 0x7FFF, out=out)
