"""One thread that works ahead of its reader."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Give the items of an iterator that a thread takes from it ahead of time.

    A gather releases Python's lock, so one thread is enough to hide it behind a training step; a process would have to
    copy each batch. An error in the thread is raised where its item would have come. When the reader stops early the
    thread ends too.

    Args:
        items: What the thread goes through.
        depth: Items that may lie ready; 0 makes no thread.

    Example:
        >>> list(prefetch(iter(range(3)), depth=2))
        [0, 1, 2]
    """
    if depth < 1:
        yield from items
        return
    ahead = _Ahead(items, depth)
    try:
        while (item := ahead.ready.get()) is not ahead:
            ahead.wanted.put(True)
            yield item  # type: ignore[misc]  # the end's mark was told apart above
        if ahead.error is not None:
            raise ahead.error
    finally:
        ahead.end()


class _Ahead(Generic[Item]):
    """The thread, what it has made, and how much more is wanted of it; the object itself marks the end."""

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        # Two queues written in C, one each way: a bounded `Queue` costs more than a small gather.
        self.ready: SimpleQueue[Item | _Ahead[Item]] = SimpleQueue()
        self.wanted: SimpleQueue[bool] = SimpleQueue()
        self.error: BaseException | None = None
        self._items = items
        self._ended = False
        for _ in range(depth):
            self.wanted.put(True)
        self._thread = Thread(target=self._work, name="lightning_mp prefetch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended = True
        self.wanted.put(False)
        self._thread.join()

    def _work(self) -> None:
        try:
            for item in self._items:
                self.ready.put(item)
                self.wanted.get()
                if self._ended:
                    return
        except BaseException as error:  # it is raised in the reader's thread
            self.error = error
        self.ready.put(self)
