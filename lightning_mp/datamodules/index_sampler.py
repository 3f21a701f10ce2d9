"""IndexSampler: which rows make which batch, from the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler
from typing_extensions import override

from lightning_mp.errors import ConfigurationError

_SEEDS_PER_EPOCH = 1_000_003  # a prime, so that neighbouring seeds do not share orders over any run's epochs


class IndexSampler(DistributedSampler[Any]):
    """Yields one tensor of row numbers a batch; the order is a function of the seed and the epoch alone.

    It draws from a generator of its own, never from the global one. Over several processes each takes every
    `num_replicas`-th row of one common order; in training the rows beyond a multiple of `num_replicas` sit out an
    epoch (others in the next), in evaluation every row is met exactly once. A last batch of a single row, which batch
    normalisation refuses, joins the one before it. All processes have the same number of batches.

    It is a `DistributedSampler` so that Lightning leaves it in place and tells it the epoch.

    Args:
        rows: Rows of the split.
        batch_size: Rows a batch, in each process.
        shuffle: A new order each epoch; otherwise the stored one.
        seed: Of the order.
        num_replicas: Processes.
        rank: This process's place among them.

    Raises:
        ConfigurationError: `batch_size` is below 1, or there are fewer rows than processes.

    Example:
        >>> sampler = IndexSampler(7, batch_size=3, shuffle=False)
        >>> [batch.tolist() for batch in sampler], len(sampler)
        ([[0, 1, 2], [3, 4, 5, 6]], 2)
    """

    def __init__(
        self, rows: int, *, batch_size: int, shuffle: bool, seed: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"`batch_size` must be at least 1, got {batch_size}", "start with 4096")
        if rows < num_replicas:
            raise ConfigurationError(f"{rows:,} rows do not go round {num_replicas} processes", "use fewer devices")
        super().__init__(range(rows), num_replicas=num_replicas, rank=rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]
        self.rows = rows
        self.batch_size = batch_size

    @override
    def __iter__(self) -> Iterator[Tensor]:
        # A generator function: the order is drawn when the first batch is asked for. Lightning makes the iterator
        # before it tells the epoch, and a resumed run would go through the wrong order.
        order = torch.arange(self.rows)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * _SEEDS_PER_EPOCH + self.epoch)
            order = torch.randperm(self.rows, generator=generator)
        mine = order[self.rank : self._used() : self.num_replicas]
        sizes = [self.batch_size] * len(self)
        sizes[-1] += len(mine) - sum(sizes)
        yield from torch.split(mine, sizes)

    @override
    def __len__(self) -> int:
        # From the smallest share: a process with a row more takes it in its last batch, and none has a batch more.
        full, rest = divmod(self.rows // self.num_replicas, self.batch_size)
        return max(full + (rest > (1 if full else 0)), 1)

    def _used(self) -> int:
        return self.rows - self.rows % self.num_replicas if self.shuffle else self.rows
