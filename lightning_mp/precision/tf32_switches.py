"""Read and set whether a GPU multiplies float32 matrices in TF32, without breaking those who read it after us."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Tf32Switches:
    """Whether a GPU may multiply float32 numbers in TF32: the range of float32, the ten fraction bits of float16.

    torch has two interfaces for this. Once the new one (`torch.backends.cuda.matmul.fp32_precision`) has set it, the
    old one raises `RuntimeError` on every read, and Lightning reads the old one when a GPU run starts. Here it is
    read through the new one, which never raises, and set through the old one, after which both answer alike.

    Args:
        matmul: Products of matrices.
        convolution: Convolutions and recurrent layers of cuDNN; torch allows these unless told otherwise.

    Example:
        >>> before = Tf32Switches.read()
        >>> Tf32Switches(matmul=True, convolution=True).apply()
        >>> Tf32Switches.read().matmul, torch.get_float32_matmul_precision()
        (True, 'high')
        >>> before.apply()

    Source:
        The mix that raises: https://github.com/pytorch/pytorch/issues/179445
    """

    matmul: bool
    convolution: bool

    @classmethod
    def read(cls) -> Tf32Switches:
        """What holds in this process now, whichever interface has set it."""
        backends = torch.backends
        convolution = {backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision}  # type: ignore[attr-defined]  # newer than the stubs
        return cls(
            matmul=backends.cuda.matmul.fp32_precision == "tf32", convolution=bool(convolution & {"tf32", "bf16"})
        )

    def apply(self) -> None:
        """Set both switches for this process; also mends a mix of the two interfaces."""
        torch.set_float32_matmul_precision("high" if self.matmul else "highest")
        cudnn = torch.backends.cudnn
        cudnn.allow_tf32 = self.convolution
        if not self.convolution:  # the old interface leaves them to what is set for all backends
            cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]  # newer than the stubs

    @property
    def old_interface_raises(self) -> bool:
        """Whether `torch.get_float32_matmul_precision` raises now, and Lightning when it starts on a GPU."""
        try:
            torch.get_float32_matmul_precision()
        except RuntimeError:
            return True
        return False
