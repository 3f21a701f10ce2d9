from __future__ import annotations

import threading

import pytest

from lightning_mp.datamodules.prefetch import prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("lightning_mp")]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_all_items_in_their_order(depth):
    assert list(prefetch(iter(range(100)), depth)) == list(range(100))
    assert threads() == []


def test_it_works_ahead_and_no_further():
    taken, reached = [], threading.Event()

    def items():
        for number in range(100):
            taken.append(number)
            if number == 3:
                reached.set()
            yield number

    stream = prefetch(items(), 2)
    assert next(stream) == 0
    assert reached.wait(10)  # one given, two ready, one in hand
    assert taken == [0, 1, 2, 3]
    stream.close()
    assert threads() == []


def test_an_error_comes_where_its_item_would_have():
    def items():
        yield 1
        raise KeyError("row 7")

    stream = prefetch(items(), 4)
    assert next(stream) == 1
    with pytest.raises(KeyError, match="row 7"):
        next(stream)
    assert threads() == []
