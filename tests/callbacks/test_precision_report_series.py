"""A number over the steps, in bounded space."""

from __future__ import annotations

import json
import random

from lightning_mp.callbacks.precision_report_series import Series


def test_ends_and_extremes_stay_whatever_is_added():
    values = [random.gauss(0, 1) for _ in range(random.randint(1, 20_000))]
    series = Series()
    for step, value in enumerate(values):
        series.add(step, value)
    points = series.points
    assert len(points) <= 4 * 129
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert all(values[step] == value for step, value in points)
    assert points[0] == (0, values[0])
    assert points[-1] == (len(values) - 1, values[-1])
    assert max(v for _, v in points) == max(values)
    assert min(v for _, v in points) == min(values)


def test_what_is_not_finite_is_a_gap():
    series = Series()
    for step, value in enumerate([1.0, float("nan"), float("inf"), 2.0]):
        series.add(step, value)
    assert series.points == [(0, 1.0), (3, 2.0)]
    assert series.gaps == [1, 2]
    assert series.last == 2.0


def test_its_state_goes_on_where_it_stopped():
    whole, half = Series(), Series()
    for step in range(3000):
        whole.add(step, step % 7)
    for step in range(1500):
        half.add(step, step % 7)
    again = Series.from_state(json.loads(json.dumps(half.to_state())))
    for step in range(1500, 3000):
        again.add(step, step % 7)
    assert again.points == whole.points
    assert half.last == 1499 % 7  # the copy is its own
