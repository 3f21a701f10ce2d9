"""RowOrder: which rows make which batch; a function of the seed and the epoch, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Generator, Tensor

from lightning_mp.errors import ConfigurationError

Shuffle = Literal["global", "block", "none"]

_SEEDS_PER_EPOCH = 1_000_003  # a prime, so that neighbouring seeds do not share orders over any run's epochs
_RUN: Final = 128  # neighbouring rows that block mode keeps together in an epoch: 16 KiB of 64 float16 columns
_PIECE: Final = 16  # runs that lie side by side in the store and are read about the same time
_MIXED: Final = 128  # runs that are mixed: 16,384 rows out of 8 places in the store
_GATHERED: Final = 16_384  # rows that are gathered at a time: what Python does for a batch then weighs little
_COPIED: Final = 4096  # rows that are copied at a time: they stay in a core's own cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of a few batches that are read at once: a span, or runs and after them single rows.

    Args:
        sizes: Rows of each batch.
        span: First and last (exclusive) row of neighbours; then there is nothing else.
        runs: Numbers of runs of 128 neighbours, counted from row `shift`, int64.
        shift: The row that run 0 begins at.
        skip: Rows at the beginning of the first run that belong to the batch before.
        single: Row numbers, int64.
    """

    sizes: list[int]
    span: tuple[int, int] | None = None
    runs: Tensor | None = None
    shift: int = 0
    skip: int = 0
    single: Tensor | None = None

    def rows(self) -> Tensor:
        """The row numbers, (rows,) int64."""
        if self.span is not None:
            return torch.arange(*self.span)
        rows = [] if self.single is None else [self.single]
        if self.runs is not None:
            rows.insert(0, (self.shift + self.runs[:, None] * _RUN + torch.arange(_RUN)).flatten())
        return torch.cat(rows).narrow(0, self.skip, sum(self.sizes))

    def gather(self, matrix: Tensor) -> Tensor:
        """The rows of a matrix, (rows, width): a run is one copy."""
        if self.span is not None:
            return matrix[slice(*self.span)].clone()
        parts = [] if self.single is None else [matrix.index_select(0, self.single)]
        if self.runs is not None:
            count, width = (len(matrix) - self.shift) // _RUN, matrix.shape[1]
            whole = matrix.narrow(0, self.shift, count * _RUN).view(count, _RUN * width)
            parts.insert(0, whole.index_select(0, self.runs).view(-1, width))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).narrow(0, self.skip, sum(self.sizes))


class RowOrder:
    """Which rows make which batch; a function of the seed and the epoch, and of nothing else.

    It draws from generators of its own, never from the global one. In `"block"` mode runs of 128 neighbouring rows, cut
    at other places each epoch, come in random order, those read about the same time out of 8 places of the store: on
    rows that were shuffled when they were written, as a feature store's are, batches are as mixed as with a global
    shuffle.

    Over several processes each takes its share of one common order; in training the rows beyond a multiple of
    `num_replicas` sit out an epoch (others in the next), without shuffling every row is met exactly once. A last batch
    of a single row, which batch normalisation refuses, joins the one before it. All processes have equally many
    batches.

    Args:
        rows: Rows of the split.
        batch_size: Rows a batch, in each process.
        shuffle: `"global"`, `"block"`, or `"none"` for the stored order.
        seed: Of the order.
        num_replicas: Processes.
        rank: This process's place among them.

    Raises:
        ConfigurationError: `batch_size` is below 1, `shuffle` is another word, or there are fewer rows than processes.

    Example:
        >>> order = RowOrder(7, batch_size=3, shuffle="none")
        >>> [batch.tolist() for batch in order.batches(epoch=0)], len(order)
        ([[0, 1, 2], [3, 4, 5, 6]], 2)
    """

    def __init__(
        self,
        rows: int,
        *,
        batch_size: int,
        shuffle: Shuffle = "global",
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"`batch_size` must be at least 1, got {batch_size}", "start with 4096")
        if shuffle not in get_args(Shuffle):
            problem = f"`shuffle` must be 'global', 'block' or 'none', got {shuffle!r}"
            raise ConfigurationError(problem, "use 'global'")
        if rows < num_replicas:
            raise ConfigurationError(f"{rows:,} rows do not go round {num_replicas} processes", "use fewer devices")
        self.rows = rows
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank

    def __len__(self) -> int:
        # From the smallest share: a process with a row more takes it in its last batch, and none has a batch more.
        full, rest = divmod(self.rows // self.num_replicas, self.batch_size)
        return max(full + (rest > (1 if full else 0)), 1)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Tensor]:
        """Row numbers of each batch, (B,) int64.

        Args:
            epoch: Counted from 0.
            start: Number of the first batch that is wanted.
        """
        for chunk in self.chunks(epoch, start):
            yield from torch.split(chunk.rows(), chunk.sizes)

    def chunks(self, epoch: int, start: int = 0) -> Iterator[Chunk]:
        """The same batches, a few at a time, with where they are read from.

        Args:
            epoch: Counted from 0.
            start: Number of the first batch that is wanted.
        """
        runs, shift, single = self._blocks(epoch) if self.shuffle == "block" else (None, 0, self._share(epoch))
        in_runs = 0 if runs is None else len(runs) * _RUN
        rows = self.rows if single is None else in_runs + len(single)
        at_once, batches = max((_COPIED if single is None else _GATHERED) // self.batch_size, 1), len(self)
        for batch in range(start, batches, at_once):
            following = batch + at_once
            first, end = batch * self.batch_size, rows if following >= batches else following * self.batch_size
            sizes = self._sizes(end - first, min(at_once, batches - batch))
            if single is None:
                yield Chunk(sizes=sizes, span=(first, end))
                continue
            skip, chosen = 0, None
            if runs is not None and first < in_runs:
                skip, chosen = first % _RUN, runs[first // _RUN : -(-end // _RUN)]
            loose = single[max(first - in_runs, 0) : max(end - in_runs, 0)]
            yield Chunk(sizes=sizes, runs=chosen, shift=shift, skip=skip, single=loose if len(loose) else None)

    def _share(self, epoch: int) -> Tensor | None:
        """This process's rows in their order; `None` for all in the stored order."""
        if self.shuffle == "none":
            return torch.arange(self.rank, self.rows, self.num_replicas) if self.num_replicas > 1 else None
        used = self.rows - self.rows % self.num_replicas
        return torch.randperm(self.rows, generator=self._generator(epoch))[self.rank : used : self.num_replicas]

    def _blocks(self, epoch: int) -> tuple[Tensor, int, Tensor]:
        """This process's runs in their order, where they are counted from, and its rows that are in no run."""
        generator, replicas = self._generator(epoch), self.num_replicas
        shift = int(torch.randint(_RUN, (1,), generator=generator)) if self.rows >= 2 * _RUN else 0
        runs = (self.rows - shift) // _RUN
        pieces = torch.randperm(-(-runs // _PIECE), generator=generator)
        order = (pieces[:, None] * _PIECE + torch.arange(_PIECE)).flatten()
        order = order[order < runs]
        # Sorted by window and, within it, by a random number: all windows are mixed at once.
        mixed = torch.arange(runs) // _MIXED + torch.rand(runs, generator=generator, dtype=torch.float64)
        order = order[mixed.argsort()]
        shared = runs - runs % replicas
        left_over = (shift + order[shared:, None] * _RUN + torch.arange(_RUN)).flatten()
        single = torch.cat([torch.arange(shift), torch.arange(shift + runs * _RUN, self.rows), left_over])
        single = single[torch.randperm(len(single), generator=generator)]
        used = len(single) - len(single) % replicas
        return order[self.rank : shared : replicas], shift, single[self.rank : used : replicas]

    def _sizes(self, rows: int, batches: int) -> list[int]:
        sizes = [self.batch_size] * batches
        sizes[-1] += rows - sum(sizes)
        return sizes

    def _generator(self, epoch: int) -> Generator:
        return Generator().manual_seed(self.seed * _SEEDS_PER_EPOCH + epoch)
