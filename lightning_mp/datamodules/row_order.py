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
_WINDOW: Final = 16_384  # rows that are mixed at a time in block mode: 2 MiB of 64 float16 columns, about a cache
_RUN: Final = 16  # neighbouring rows that stay together in block mode, in one epoch: 2 KiB of 64 float16 columns
_GATHERED: Final = 16_384  # rows that are gathered at a time: what Python does for a batch then weighs little
_COPIED: Final = 4096  # rows that are copied at a time: they stay in a core's own cache
_BLOCKS: Final = 8  # pieces of the store that a window is read from, at most


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a few batches that are read at once.

    Args:
        pieces: Row numbers from and to (exclusive) of neighbouring rows, read one after the other; `None` for rows from
            anywhere.
        places: Which runs of the pieces' rows, laid end to end, come when, int64; rows beyond the last full run come
            last; `None` for all as they are. Without pieces: the row numbers.
        sizes: Rows of each batch.
        run: Rows that stay together.
        skipped: Batches at the beginning that are not wanted.
    """

    pieces: tuple[tuple[int, int], ...] | None
    places: Tensor | None
    sizes: list[int]
    run: int = 1
    skipped: int = 0

    def rows(self) -> Tensor:
        """The row numbers, (rows,) int64."""
        if self.pieces is None:
            return torch.empty(0, dtype=torch.int64) if self.places is None else self.places
        rows = torch.cat([torch.arange(*piece) for piece in self.pieces])
        if self.places is None:
            return rows
        full = len(self.places) * self.run
        return torch.cat([rows[:full].view(-1, self.run)[self.places].flatten(), rows[full:]])


class RowOrder:
    """Which rows make which batch; a function of the seed and the epoch, and of nothing else.

    It draws from generators of its own, never from the global one. In `"block"` mode a window of about 16,384 rows is
    read in up to 8 pieces from places that change each epoch, and mixed in runs of 16 neighbours: on rows that were
    shuffled when they were written, as a feature store's are, batches are as mixed as with a global shuffle.

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
            yield from torch.split(chunk.rows(), chunk.sizes)[chunk.skipped :]

    def chunks(self, epoch: int, start: int = 0) -> Iterator[Chunk]:
        """The same batches, a few at a time, with where they are read from.

        Args:
            epoch: Counted from 0.
            start: Number of the first batch that is wanted.
        """
        if self.shuffle == "block":
            yield from self._blocks(epoch, start)
            return
        mine = None if self.shuffle == "none" and self.num_replicas == 1 else self._share(epoch)
        rows = self.rows if mine is None else len(mine)
        at_once, batches = max((_COPIED if mine is None else _GATHERED) // self.batch_size, 1), len(self)
        for batch in range(start, batches, at_once):
            following = batch + at_once
            first, end = batch * self.batch_size, rows if following >= batches else following * self.batch_size
            sizes = self._sizes(end - first, min(at_once, batches - batch))
            yield Chunk(((first, end),), None, sizes) if mine is None else Chunk(None, mine[first:end], sizes)

    def _share(self, epoch: int) -> Tensor:
        if self.shuffle == "none":
            return torch.arange(self.rank, self.rows, self.num_replicas)
        used = self.rows - self.rows % self.num_replicas
        return torch.randperm(self.rows, generator=self._generator(epoch))[self.rank : used : self.num_replicas]

    def _blocks(self, epoch: int, start: int) -> Iterator[Chunk]:
        generator = self._generator(epoch)
        rows = self.rows // self.num_replicas
        per_window = max(_WINDOW // self.batch_size, 1)
        window = per_window * self.batch_size
        pieces = next(count for count in range(_BLOCKS, 0, -1) if window % count == 0)
        block = window // pieces
        origin = int(torch.randint(self.rows, (1,), generator=generator)) + self.rank * rows
        blocks = torch.randperm(rows // block, generator=generator) * block
        windows = max(rows // window + (rows % window > 1), 1)
        for number in range(windows):
            last = number == windows - 1
            chosen = blocks[number * pieces :] if last else blocks[number * pieces : (number + 1) * pieces]
            spans = [(first, first + block) for first in chosen.tolist()]
            if last and rows % block:
                spans.append((rows - rows % block, rows))
            size = sum(end - first for first, end in spans)
            places = torch.randperm(size // _RUN, generator=generator)
            skipped = max(start - number * per_window, 0)
            sizes = self._sizes(size, len(self) - number * per_window if last else per_window)
            if skipped < len(sizes):
                yield Chunk(tuple(self._around(origin, spans)), places, sizes, run=_RUN, skipped=skipped)

    def _around(self, origin: int, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for first, end in spans:
            begin = (origin + first) % self.rows
            stop = begin + end - first
            yield begin, min(stop, self.rows)
            if stop > self.rows:
                yield 0, stop - self.rows

    def _sizes(self, rows: int, batches: int) -> list[int]:
        sizes = [self.batch_size] * batches
        sizes[-1] += rows - sum(sizes)
        return sizes

    def _generator(self, epoch: int) -> Generator:
        return Generator().manual_seed(self.seed * _SEEDS_PER_EPOCH + epoch)
