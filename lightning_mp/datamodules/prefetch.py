"""One thread that works ahead of its reader."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TypeVar

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
    ready: Queue[tuple[str, Item | BaseException | None]] = Queue(depth)
    stop = Event()
    thread = Thread(target=_work, args=(items, ready, stop), name="lightning_mp prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if isinstance(item, BaseException) and kind == "error":
                raise item
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        while thread.is_alive():
            _drain(ready)
            thread.join(timeout=0.05)


def _work(items: Iterator[Item], ready: Queue[tuple[str, Item | BaseException | None]], stop: Event) -> None:
    try:
        for item in items:
            if not _put(ready, ("item", item), stop):
                return
        _put(ready, ("end", None), stop)
    except BaseException as error:
        _put(ready, ("error", error), stop)


def _put(ready: Queue[Item], item: Item, stop: Event) -> bool:
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.5)
        except Full:
            continue
        return True
    return False


def _drain(ready: Queue[Item]) -> None:
    try:
        while True:
            ready.get_nowait()
    except Empty:
        return
