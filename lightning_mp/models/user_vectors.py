"""One vector a user, gathered from the batches of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredUsers:
    """Vectors of users.

    Attributes:
        codes: (U,) int64, ascending.
        vectors: (U, E) float32.
    """

    codes: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]

    def of(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Vectors of some of them, (u, E)."""
        found: npt.NDArray[np.float32] = self.vectors[np.searchsorted(self.codes, codes)]
        return found


class UserVectors:
    """Keeps each user's vector, that of its first row."""

    def __init__(self) -> None:
        self._groups: list[Tensor] = []
        self._vectors: list[Tensor] = []

    def add(self, group: Tensor, vectors: Tensor) -> None:
        """Take in a batch: codes (B,) and vectors (B, E)."""
        self._groups.append(group.cpu())
        self._vectors.append(vectors.detach().float().cpu())

    def take(self) -> GatheredUsers | None:
        """What was gathered, and forget it; `None` where nothing was."""
        groups, self._groups = self._groups, []
        vectors, self._vectors = self._vectors, []
        if not groups:
            return None
        codes, first = np.unique(torch.cat(groups).numpy(), return_index=True)
        return GatheredUsers(codes=codes, vectors=torch.cat(vectors).numpy()[first])
