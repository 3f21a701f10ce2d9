from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.item_mean import item_mean
from lightning_mp.baselines.popularity import popularity
from lightning_mp.baselines.running_user_item_mean import running_user_item_mean
from lightning_mp.baselines.user_item_mean import user_item_mean
from lightning_mp.errors import ConfigurationError

rows = st.lists(
    st.tuples(st.integers(-1, 4), st.integers(0, 5), st.integers(0, 6), st.sampled_from([0.0, 1.0, 0.25])),
    min_size=1,
    max_size=40,
)
priors = st.floats(0.1, 50)


def columns(log):
    user, item, time, label = zip(*log, strict=True)
    return list(user), list(item), list(time), list(label)


def slow_running(log, prior):
    scores = []
    for user, item, time, _ in log:
        past = [row for row in log if row[2] < time]
        everyone = (sum(row[3] for row in past) + 1) / (len(past) + 2)
        means = []
        for column, key in ((0, user), (1, item)):
            mine = [row[3] for row in past if row[column] == key]
            means.append((sum(mine) + prior * everyone) / (len(mine) + prior))
        scores.append(sum(means) - everyone)
    return scores


@given(rows, priors)
@settings(deadline=None, max_examples=200)
def test_running_means_see_strictly_earlier_rows_alone(log, prior):
    assert running_user_item_mean(*columns(log), prior=prior) == pytest.approx(slow_running(log, prior), abs=1e-12)


@given(rows)
@settings(deadline=None, max_examples=100)
def test_later_rows_change_no_earlier_score_and_the_order_of_the_file_none_at_all(log):
    before = running_user_item_mean(*columns(log))
    latest = max(row[2] for row in log)
    more = [*log, (0, 0, latest, 1.0), (1, 2, latest + 1, 1.0)]
    assert running_user_item_mean(*columns(more))[: len(log)] == pytest.approx(before, abs=1e-12)
    order = np.random.default_rng(0).permutation(len(log))
    assert running_user_item_mean(*columns([log[i] for i in order])) == pytest.approx(before[order], abs=1e-12)


def test_no_rows_have_no_scores_and_columns_that_do_not_fit_are_named():
    assert running_user_item_mean([], [], [], []).shape == (0,)
    with pytest.raises(ConfigurationError, match="2 users, 1 items, 1 times, 1 labels"):
        running_user_item_mean([1, 2], [1], [1], [1])
    with pytest.raises(ConfigurationError, match="`prior` must be above 0, got 0"):
        running_user_item_mean([1], [1], [1], [1], prior=0)


def test_movielens_gives_the_known_figures(shared):
    """Rating of at least 4, last fifth by time: .57, .65, .68 and .80 when these means were first tried."""
    path = shared / "data" / "movielens_small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    user, item, rating, time = np.loadtxt(path, delimiter=",", skiprows=1).T
    user, item, time, label = user.astype(int), item.astype(int), time.astype(int), (rating >= 4).astype(float)
    test = time >= np.sort(time)[int(len(time) * 0.8)]
    train = ~test

    def auc(scores):
        ranks = np.unique(scores, return_inverse=True, return_counts=True)
        mid = np.cumsum(ranks[2]) - (ranks[2] - 1) / 2
        positive = label[test] == 1
        return (mid[ranks[1]][positive].mean() - (positive.sum() + 1) / 2) / (~positive).sum()

    assert auc(popularity(item[train], item[test])) == pytest.approx(0.572, abs=0.002)
    assert auc(item_mean(item[train], label[train], item[test])) == pytest.approx(0.648, abs=0.002)
    static = user_item_mean(user[train], item[train], label[train], user[test], item[test])
    assert auc(static) == pytest.approx(0.681, abs=0.002)
    assert auc(running_user_item_mean(user, item, time, label)[test]) == pytest.approx(0.810, abs=0.002)
