"""RowOrder: which rows make which batch; a function of the seed and the epoch, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, get_args

import torch
from torch import Generator, Tensor

from lightning_mp.errors import ConfigurationError

Shuffle = Literal["global", "block", "none"]

_SEEDS_PER_EPOCH = 1_000_003  # a prime, so that neighbouring seeds do not share orders over any run's epochs
_WINDOW: Final = 8192  # rows that are mixed at a time in block mode: 1 MiB of 64 float16 columns, a core's own cache
_BLOCKS: Final = 8  # pieces of the store that a window is read from, at most


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of block mode that are read in a few pieces and then mixed.

    Args:
        pieces: Row numbers from and to (exclusive) of each piece.
        batches: Places in the pieces, laid end to end, that make each batch; (B,) int64.
    """

    pieces: tuple[tuple[int, int], ...]
    batches: tuple[Tensor, ...]


class RowOrder:
    """Which rows make which batch; a function of the seed and the epoch, and of nothing else.

    It draws from generators of its own, never from the global one. In `"block"` mode a window of about 8,192 rows is
    read in up to 8 pieces of neighbouring rows, from places that change each epoch, and mixed: on rows that were
    shuffled when they were written, as a feature store's are, that is as good as a global shuffle.

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
        if self.shuffle == "block":
            for window in self.windows(epoch, start):
                rows = torch.cat([torch.arange(*piece) for piece in window.pieces])
                for places in window.batches:
                    yield rows[places]
            return
        if self.shuffle == "global":
            used = self.rows - self.rows % self.num_replicas
            order = torch.randperm(self.rows, generator=self._generator(epoch))
            mine = order[self.rank : used : self.num_replicas]
        else:
            mine = torch.arange(self.rank, self.rows, self.num_replicas)
        yield from islice(torch.split(mine, self._sizes(len(mine), len(self))), start, None)

    def windows(self, epoch: int, start: int = 0) -> Iterator[Window]:
        """The same batches in block mode, with the pieces that they are read from.

        Args:
            epoch: Counted from 0.
            start: Number of the first batch that is wanted.
        """
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
            order = torch.randperm(size, generator=generator)
            left = start - number * per_window
            if not last and left >= per_window:
                continue
            sizes = self._sizes(size, len(self) - number * per_window if last else per_window)
            batches = torch.split(order, sizes)[max(left, 0) :]
            yield Window(tuple(self._around(origin, spans)), batches)

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
