"""SampledNegatives: items that a row did not take, drawn anew each epoch by the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_mp.errors import ConfigurationError

Strategy = Literal["uniform", "popularity", "in_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledNegatives:
    """Items that a row did not take, drawn anew each epoch: `negatives` (B, count) int64 in a batch.

    A draw comes from the seed, the epoch and the row alone, so it is the same whichever process or worker makes it, and
    after a resume. Numbers are vocabulary rows of the feature, from 1 on, and never the row's own.

    Args:
        feature: The indexed feature that is drawn, such as the item's id.
        count: How many for each row.
        strategy: `"uniform"` over the vocabulary; `"popularity"`: in proportion to how often an item stands in the
            split, to the power `exponent`; `"in_batch"`: the items of other rows of the same batch, which a model has
            looked up already. Where the batch holds no other item there is none to draw, and the row's own stands.
        exponent: Of the popularity; below 1 rare items come more often than they stand there.
        seed: Of the draws.

    Raises:
        ConfigurationError: `count` is below 1, or `strategy` is another word.

    Source:
        Mikolov and others, Distributed representations of words and phrases, NeurIPS 2013: the exponent 0.75.
        Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014: splitmix64.

    Example:
        >>> draws = SampledNegatives(feature="item", count=2, seed=1)
        >>> own, rows = torch.tensor([3, 1]), torch.tensor([10, 11])
        >>> one = draws.draw(own, rows, epoch=0, weights=np.ones(5))
        >>> bool(torch.equal(one.flip(0), draws.draw(own.flip(0), rows.flip(0), epoch=0, weights=np.ones(5))))
        True
    """

    feature: str
    count: int = 4
    strategy: Strategy = "uniform"
    exponent: float = 0.75
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigurationError(f"`negatives.count` must be at least 1, got {self.count}", "use 4")
        if self.strategy not in get_args(Strategy):
            problem = f"`negatives.strategy` must be 'uniform', 'popularity' or 'in_batch', got {self.strategy!r}"
            raise ConfigurationError(problem, "use 'uniform'")

    def weights(self, ids: NDArray[np.int32], size: int) -> NDArray[np.float64]:
        """Weight of each vocabulary row from 1 on, (size - 1,).

        Args:
            ids: The feature's column of the split, (N,).
            size: Rows of the vocabulary, the unknown row 0 included.
        """
        if self.strategy != "popularity":
            return np.ones(size - 1)
        counts = np.bincount(ids, minlength=size)[1:size].astype(np.float64)
        return np.asarray(counts**self.exponent)

    def draw(self, own: Tensor, rows: Tensor, *, epoch: int, weights: NDArray[np.float64]) -> Tensor:
        """Negatives of a batch.

        Args:
            own: Vocabulary row of each row's own item, (B,).
            rows: What tells the rows apart, (B,) int64.
            epoch: Counted from 0.
            weights: As `weights` gave them.

        Returns:
            (B, count) int64.
        """
        mine, uniform = own.numpy().astype(np.int64), _uniform(self.seed, epoch, rows.numpy(), self.count)
        if self.strategy == "in_batch":
            return torch.from_numpy(_of_others(mine, uniform))
        # The row's own weight is cut out of the line that is drawn on, so that one draw is enough.
        ends = np.cumsum(weights)
        inside = mine > 0
        width = np.where(inside, weights[np.maximum(mine - 1, 0)], 0.0)
        start = np.where(inside, ends[np.maximum(mine - 1, 0)] - width, np.inf)
        point = uniform * (ends[-1] - width)[:, None]
        point = np.where(point >= start[:, None], point + width[:, None], point)
        drawn = np.minimum(np.searchsorted(ends, point, side="right"), len(weights) - 1) + 1
        # A point may round onto the very edge of what was cut out.
        drawn = np.where(drawn == mine[:, None], drawn % len(weights) + 1, drawn)
        return torch.from_numpy(drawn)


def _of_others(own: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    kinds, inverse, counts = np.unique(own, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")  # rows of one item lie side by side
    first = np.cumsum(counts)[inverse] - counts[inverse]
    others = len(own) - counts[inverse]
    place = np.floor(uniform * others[:, None]).astype(np.int64)
    place += np.where(place >= first[:, None], counts[inverse][:, None], 0)
    return np.where(others[:, None] > 0, own[order[np.minimum(place, len(own) - 1)]], kinds[inverse][:, None])


def _uniform(seed: int, epoch: int, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), (B, count): splitmix64 of seed, epoch, row and place, so that no row depends on another."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        state = _mixed(np.full(1, (seed * 1_000_003 + epoch) % 2**64, dtype=np.uint64) + golden)
        state = _mixed(rows.astype(np.uint64) * golden + state)
        places = np.arange(1, count + 1, dtype=np.uint64) * golden
        state = _mixed(state[:, None] + places[None, :])
    return np.asarray((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
