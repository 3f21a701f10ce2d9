from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.write import write_log

SMALL = {"impressions": 60_000, "users": 2_000, "items": 200, "seed": 9}


def values(path, name):
    return pq.read_table(path)[name].to_numpy(zero_copy_only=False)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("sound") / "log", SyntheticLog(**SMALL))


def changed(sound, faulty):
    one, other = pq.read_table(sound), pq.read_table(faulty)
    return {name for name in other.schema.names if name not in one.schema.names or not one[name].equals(other[name])}


def test_without_faults_values_are_possible_and_no_leak_is_there(sound):
    assert values(sound, "age").min() >= 18
    assert 5 < values(sound, "spend").min() < values(sound, "spend").max() < 10_000
    assert (values(sound, "promotion") == 0).mean() == pytest.approx(0.95, abs=0.01)
    assert values(sound, "promotion").max() <= 1
    assert not {"user_click_rate", "page_depth"} & set(pq.read_schema(sound).names)


def test_one_user_in_five_has_a_negative_age(tmp_path, sound):
    path = write_log(tmp_path / "log", SyntheticLog(faults=Faults(negative_ages=True), **SMALL))
    assert changed(sound, path) == {"age"}
    negative = {user for user, age in zip(values(path, "user_id"), values(path, "age"), strict=True) if age < 0}
    users = len(set(values(path, "user_id")))
    assert len(negative) / users == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / users))
    assert np.array_equal(np.abs(values(path, "age")), values(sound, "age"))


def test_spend_reaches_from_a_cent_to_twenty_millions_in_the_same_order(tmp_path, sound):
    path = write_log(tmp_path / "log", SyntheticLog(faults=Faults(exploding_spend=True), **SMALL))
    assert changed(sound, path) == {"spend"}
    spend = values(path, "spend")
    assert spend.min() == pytest.approx(0.01)
    assert spend.max() == pytest.approx(2e7)
    assert (spend > 65504).any(), "float16 ends there"
    order = np.argsort(values(sound, "spend"), kind="stable")
    assert (np.diff(spend[order]) >= 0).all()


def test_promotion_is_zero_on_95_percent_and_bursts_on_the_rest(tmp_path, sound):
    path = write_log(tmp_path / "log", SyntheticLog(faults=Faults(sparse_bursts=True), **SMALL))
    assert changed(sound, path) == {"promotion"}
    burst = values(path, "promotion")
    assert (burst == 0).mean() == pytest.approx(0.95, abs=0.01)
    assert burst[burst > 0].min() > 10
    assert burst.max() > 5e5
    assert Faults(sparse_bursts=True).read_promotion(burst) == pytest.approx(values(sound, "promotion"), abs=1e-12)


def test_leaks_know_the_future_and_the_label(tmp_path, sound):
    path = write_log(tmp_path / "log", SyntheticLog(faults=Faults(future_leaks=True), **SMALL))
    assert changed(sound, path) == {"user_click_rate", "page_depth"}
    user, click, rate = (values(path, name) for name in ("user_id", "click", "user_click_rate"))
    for one in np.unique(user)[:50]:
        assert rate[user == one] == pytest.approx(click[user == one].mean())
    depth = values(path, "page_depth")
    pairs = np.searchsorted(np.sort(depth[~click]), depth[click]) / (~click).sum()
    assert pairs.mean() > 0.99, "a click in disguise"


def test_all_at_once(tmp_path, sound):
    faults = Faults(negative_ages=True, exploding_spend=True, sparse_bursts=True, future_leaks=True)
    path = write_log(tmp_path / "log", SyntheticLog(faults=faults, **SMALL))
    assert changed(sound, path) == {"age", "spend", "promotion", "user_click_rate", "page_depth"}
