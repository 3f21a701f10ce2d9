"""Windows over sorted events against a plain loop over each of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_mp.data.earlier_events import EarlierEvents
from lightning_mp.data.history import History

SECOND = 1_000_000


def draw(generator, count=400):
    """Entities from one event to many, times with ties, in the order that the class wants."""
    entity = np.sort(generator.choice(12, count, p=np.array([40, *[1] * 11]) / 51))
    time = generator.integers(-300, 300, count) * SECOND
    order = np.lexsort((time, entity))
    time = time[order]
    starts = np.flatnonzero(np.diff(entity, prepend=-1))
    return entity, time, starts


def windows(entity, time, history):
    """For each event, the places of what it may see."""
    for place in range(len(time)):
        now = int(time[place]) - history.delay_us
        seen = (entity == entity[place]) & (time < now)
        if history.window_us is not None:
            seen &= time >= max(now - history.window_us, -(2**63))
        yield place, seen


@pytest.mark.parametrize("window", ["1s", "7s", "90s", "30d", "99999999999999d", "all"])
@pytest.mark.parametrize("delay", ["0s", "3s"])
def test_every_measure_is_that_of_a_plain_loop(window, delay):
    generator = np.random.default_rng()
    entity, time, starts = draw(generator)
    count = len(time)
    of, per = generator.random(count) < 0.4, generator.random(count) < 0.6
    prices, codes = np.round(generator.normal(size=count), 3), generator.integers(0, 5, count)
    events = EarlierEvents(time, starts)
    asked = np.flatnonzero(generator.random(count) < 0.8)
    past = {"of": "click", "by": ("user",), "window": window, "delay": delay}

    def made(**settings):
        numbers = {"numbers": settings.pop("numbers")} if "numbers" in settings else {}
        below = {"per": settings.pop("below")} if "below" in settings else {}
        mean = settings.pop("mean", 0.0)
        return events.values(History(**past, **settings), asked, of, **below, **numbers, prior_mean=mean)

    found = {
        "count": made(),
        "rate": made(measure="rate", per="view", below=per),
        "smooth": made(measure="rate", per="view", below=per, prior=3.0, mean=0.25),
        "sum": made(measure="sum", column="price", numbers=prices),
        "mean": made(measure="mean", column="price", numbers=prices),
        "recency": made(measure="recency"),
        "distinct": made(measure="distinct", column="price", numbers=codes),
    }
    wanted = {name: [] for name in found}
    for place, seen in windows(entity, time, History(**past)):
        if place not in asked:
            continue
        mine = seen & of
        above, below = int(mine.sum()), int((seen & per).sum())
        wanted["count"].append(above)
        wanted["rate"].append(above / below if below else math.nan)
        wanted["smooth"].append((above + 0.75) / (below + 3))
        wanted["sum"].append(math.fsum(prices[mine]))
        wanted["mean"].append(math.fsum(prices[mine]) / above if above else math.nan)
        wanted["recency"].append((time[place] - time[mine].max()) / SECOND if above else math.nan)
        wanted["distinct"].append(len(set(codes[mine].tolist())))
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_a_sum_knows_only_its_own_numbers():
    """Neither a huge number, nor infinity, nor NaN changes the sums of windows that it is not in."""
    generator = np.random.default_rng()
    count = 300
    time = np.arange(count) * SECOND
    numbers = generator.random(count) * 1e-3
    numbers[[50, 100, 150, 200]] = [1e300, math.inf, math.nan, -math.inf]
    history = History(of="click", by=("user",), measure="sum", column="price", window="9s")
    events = EarlierEvents(time, np.array([0]))
    found = events.values(history, np.arange(count), np.ones(count, dtype=bool), numbers=numbers)
    for place in range(count):
        mine = numbers[max(place - 9, 0) : place]
        wanted = math.fsum(mine) if np.isfinite(mine).all() else float(mine.sum())
        np.testing.assert_allclose(found[place], wanted, rtol=1e-14)


def test_numbers_that_do_not_count_are_not_read():
    history = History(of="click", by=("user",), measure="sum", column="price")
    events = EarlierEvents(np.array([1, 2, 3]), np.array([0]))
    numbers, of = np.array([math.nan, 2.0, 5.0]), np.array([False, True, True])
    assert events.values(history, np.arange(3), of, numbers=numbers).tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize("ends", [(-(2**63), 2**63 - 1), (0, 2**62), (5, 5)])
def test_times_as_far_apart_as_there_are(ends):
    events = EarlierEvents(np.array(ends), np.array([0]))
    asked, both = np.arange(2), np.ones(2, dtype=bool)
    far = float(ends[0] < ends[1])
    assert events.values(History(of="click", by=("user",)), asked, both).tolist() == [0.0, far]
    assert events.values(History(of="click", by=("user",), window="1h"), asked, both).tolist() == [0.0, 0.0]
    assert events.values(History(of="click", by=("user",), delay="1h"), asked, both).tolist() == [0.0, far]
