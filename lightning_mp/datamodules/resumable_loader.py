"""ResumableLoader: batches in an order that a checkpoint can go on with, to the row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from lightning_mp.datamodules.prefetch import prefetch
from lightning_mp.datamodules.row_order import RowOrder, Shuffle
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.errors import ConfigurationError

Batch = dict[str, Tensor]


@runtime_checkable
class BatchDataset(Protocol):
    """Rows that give a whole batch at once: `dataset[rows]` with a tensor of row numbers, (B,) int64."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class ResumableLoader:
    """Gives batches in an order that a checkpoint can go on with, to the row.

    The order comes from the seed and the epoch alone; the place in it is the number of batches given out, whatever
    lies ready in the background. Lightning saves and restores it: a run that was killed goes on with the very batch
    that came next. It never draws from the global generator.

    Without workers one thread gathers ahead, which is the fastest way for rows in memory or in a mapped file. In the
    stored order of a `StoreDataset` nothing is gathered: batches are parts of a map of the file that each epoch makes
    anew, copy-on-write, so that they may be kept and written to like others.

    It works with any map-style dataset whose `dataset[rows]` gives a batch. In a loop of your own call `set_epoch`
    before each epoch, as for a `DistributedSampler`.

    Args:
        dataset: The rows. Where it has `check()`, that is called at each epoch's start; where it has `epoch`, that is
            set.
        batch_size: Rows a batch, in each process.
        shuffle: `"global"`, `"block"` (faster, for rows that were shuffled when written), or `"none"`.
        seed: Of the order.
        num_workers: Processes that make batches; for datasets whose rows cost more than a gather.
        prefetch_batches: How many reads, of a batch or a few, the thread is ahead; 0 for no thread. Left out: 2, and 0
            on a CPU unless rows are shuffled globally: neighbours are copied sooner than handed over.
        pin_memory: Hand batches out in page-locked memory, from which a GPU copies without waiting.
        num_replicas: Processes that train.
        rank: This process's place among them.

    Attributes:
        dataset: The rows.
        epoch: Counted from 0.

    Raises:
        ConfigurationError: `batch_size` is below 1, `shuffle` is another word, or there are fewer rows than processes.

    Example:
        >>> class Squares(torch.utils.data.Dataset):
        ...     def __len__(self): return 10
        ...     def __getitem__(self, rows): return {"x": rows**2}
        >>> loader = ResumableLoader(Squares(), batch_size=4, shuffle="none")
        >>> batches = iter(loader)
        >>> _ = next(batches)
        >>> again = ResumableLoader(Squares(), batch_size=4, shuffle="none")
        >>> again.load_state_dict(loader.state_dict())
        >>> [batch["x"].tolist() for batch in again]
        [[16, 25, 36, 49], [64, 81]]
    """

    batch_sampler = None

    def __init__(
        self,
        dataset: BatchDataset,
        *,
        batch_size: int,
        shuffle: Shuffle = "global",
        seed: int = 0,
        num_workers: int = 0,
        prefetch_batches: int | None = None,
        pin_memory: bool = False,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.dataset = dataset
        self.order = RowOrder(
            len(dataset),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            num_replicas=num_replicas,
            rank=rank,
        )
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.prefetch_batches = prefetch_batches
        if prefetch_batches is None:
            self.prefetch_batches = 2 if shuffle == "global" or pin_memory else 0
        self.epoch = 0
        self._given = 0
        self._start = 0
        # Lightning tells the epoch to `loader.sampler`, and looks there whether rows are shuffled.
        self.sampler: ResumableLoader | SequentialSampler = _InOrder(self) if shuffle == "none" else self

    def __len__(self) -> int:
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; telling the present one again changes nothing."""
        if epoch != self.epoch:
            self.epoch, self._given, self._start = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The place in the order: the next batch, and what it depends on."""
        done = self._given >= len(self)
        # After the last batch the next one is the first of the next epoch: (epoch, end) would skip that epoch.
        place = {"epoch": self.epoch + 1, "batch": 0} if done else {"epoch": self.epoch, "batch": self._given}
        return {**place, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at a place that `state_dict` gave.

        Raises:
            ConfigurationError: The order there came from other rows, another batch size, seed, way to shuffle or number
                of processes; both values are named.
        """
        for name, value in self._settings().items():
            if name in state and state[name] != value:
                raise ConfigurationError(
                    f"the checkpoint was written with {_SAID.get(name, name)} {state[name]!r}, the loader has "
                    f"{value!r}: the rest of the epoch would be other rows",
                    "resume with the settings of the checkpoint, or begin a new run from its weights",
                )
        self.epoch, self._start = int(state["epoch"]), int(state["batch"])
        self._given = self._start

    def __iter__(self) -> Iterator[Any]:
        # A generator function: nothing is decided before the first batch is asked for. Lightning makes the iterator
        # before it tells the epoch, and a resumed run would go through the order of another one.
        start, self._start = self._start, 0
        self._given = start
        check = getattr(self.dataset, "check", None)
        if check is not None:
            check()
        if hasattr(self.dataset, "epoch"):
            self.dataset.epoch = self.epoch
        for batch in self._from_workers(start) if self.num_workers else self._from_thread(start):
            self._given += 1
            yield batch

    def _settings(self) -> dict[str, Any]:
        order = self.order
        return {
            "rows": order.rows,
            "batch_size": order.batch_size,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "num_replicas": order.num_replicas,
        }

    def _from_thread(self, start: int) -> Iterator[Any]:
        made = self._made(start)
        pinned = ([_pinned(batch) for batch in batches] for batches in made) if self.pin_memory else made
        for batches in prefetch(pinned, self.prefetch_batches or 0):
            yield from batches

    def _made(self, start: int) -> Iterator[list[Any]]:
        order, dataset = self.order, self.dataset
        if isinstance(dataset, StoreDataset):
            if order.shuffle == "none":
                dataset = dataset.remapped()  # an epoch of its own: what is written to a batch is gone in the next
            return (dataset.batches(chunk) for chunk in order.chunks(self.epoch, start))
        return ([dataset[rows]] for rows in order.batches(self.epoch, start))

    def _from_workers(self, start: int) -> Iterator[Any]:
        # The generator is for the DataLoader's own draw: without one it would take a number from the global stream.
        return iter(
            DataLoader(
                self.dataset,  # type: ignore[arg-type]  # map-style, without torch's base class
                sampler=list(self.order.batches(self.epoch, start)),
                batch_size=None,
                num_workers=self.num_workers,
                pin_memory=self.pin_memory,
                generator=torch.Generator().manual_seed(self.order.seed),
            )
        )


_SAID = {"rows": "a number of rows of", "num_replicas": "a number of processes of"}


def _pinned(batch: Any) -> Any:
    return {name: tensor.pin_memory() for name, tensor in batch.items()} if isinstance(batch, dict) else batch


class _InOrder(SequentialSampler):
    """Says to Lightning that nothing is shuffled, and passes on the epoch."""

    def __init__(self, loader: ResumableLoader) -> None:
        super().__init__(loader.dataset)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)
