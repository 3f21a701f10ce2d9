from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.synthetic.draw import Draw
from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.record import FINGERPRINT
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.true_probabilities import true_probabilities
from lightning_mp.data.synthetic.world import draw_world
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.errors import ConfigurationError, DataError

SMALL = {"impressions": 30_000, "users": 300, "items": 80}


def area(scores, target):
    ranks = np.unique(scores, return_inverse=True, return_counts=True)
    mid = np.cumsum(ranks[2]) - (ranks[2] - 1) / 2
    return (mid[ranks[1]][target].mean() - (target.sum() + 1) / 2) / (~target).sum()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("log") / "log.parquet", SyntheticLog(seed=5, impressions=280_000))


def test_they_are_the_chances_that_the_clicks_were_drawn_with(tmp_path):
    settings = SyntheticLog(seed=2, **SMALL)
    path = write_log(tmp_path / "log", settings)
    drawn = Draw(draw_world(settings)).impressions(0, 0, settings.impressions)
    assert np.array_equal(true_probabilities(path), drawn.chance[np.argsort(drawn.time, kind="stable")])


def test_clicks_come_as_often_as_they_say_bin_by_bin(log):
    chance, click = true_probabilities(log), pq.read_table(log)["click"].to_numpy(zero_copy_only=False)
    for members in np.array_split(np.argsort(chance), 20):
        expected, spread = chance[members].sum(), np.sqrt((chance[members] * (1 - chance[members])).sum())
        assert click[members].sum() == pytest.approx(expected, abs=4 * spread)


@pytest.mark.parametrize("event", ["cart", "order"])
def test_carts_and_orders_come_as_often_as_they_say_and_never_before_their_step(log, event):
    chance, happened = true_probabilities(log, event=event), pq.read_table(log)[event].to_numpy(zero_copy_only=False)
    for members in np.array_split(np.argsort(chance), 5):
        expected, spread = chance[members].sum(), np.sqrt((chance[members] * (1 - chance[members])).sum())
        assert happened[members].sum() == pytest.approx(expected, abs=4.5 * spread + 1)
    before = true_probabilities(log, event={"cart": "click", "order": "cart"}[event])
    assert (chance < before).all()


def test_another_event_is_refused(log):
    with pytest.raises(ConfigurationError, match="`event` must be 'click', 'cart' or 'order', got 'view'"):
        true_probabilities(log, event="view")


@pytest.mark.parametrize("seed", range(4))
def test_the_best_possible_auc_leaves_room_above_chance_and_below_one(tmp_path, seed):
    path = write_log(tmp_path / "log", SyntheticLog(seed=seed, impressions=60_000))
    click = pq.read_table(path)["click"].to_numpy(zero_copy_only=False)
    assert 0.78 < area(true_probabilities(path), click) < 0.88


def test_no_column_of_a_sound_log_ranks_better(log):
    table = pq.read_table(log)
    click = table["click"].to_numpy(zero_copy_only=False)
    best = area(true_probabilities(log), click)
    for name in ("age", "spend", "position", "price", "promotion"):
        alone = area(table[name].to_numpy(), click)
        assert max(alone, 1 - alone) < best - 0.1


def test_rows_in_any_order_over_the_seam_of_two_parts(log):
    every = true_probabilities(log)
    rows = np.random.default_rng().integers(0, len(every), 5_000)
    assert np.array_equal(true_probabilities(log, rows), every[rows])
    assert true_probabilities(log, []).shape == (0,)


def test_they_depend_on_nothing_but_what_the_log_shows(tmp_path):
    """The rows alone, moved to another file in another order with the outcome thrown away, give the same numbers."""
    path = write_log(tmp_path / "log", SyntheticLog(**SMALL))
    table = pq.read_table(path)
    order = np.random.default_rng().permutation(len(table))
    seen = ["user_id", "item_id", "event_time", "device", "position", "promotion"]
    pq.write_table(table.select(seen).take(order), tmp_path / "moved")
    assert np.array_equal(true_probabilities(tmp_path / "moved"), true_probabilities(path)[order])


def test_faults_change_what_is_recorded_not_what_happened(tmp_path):
    faults = Faults(negative_ages=True, exploding_spend=True, sparse_bursts=True, future_leaks=True)
    sound, faulty = (
        write_log(tmp_path / "a", SyntheticLog(**SMALL)),
        write_log(tmp_path / "b", SyntheticLog(**SMALL, faults=faults)),
    )
    assert true_probabilities(faulty) == pytest.approx(true_probabilities(sound), rel=1e-9)
    assert pq.read_table(faulty)["click"].equals(pq.read_table(sound)["click"])


def test_in_the_long_form_impressions_have_them_and_other_rows_are_refused(tmp_path):
    wide = write_log(tmp_path / "wide", SyntheticLog(**SMALL))
    long = write_log(tmp_path / "long", SyntheticLog(**SMALL, form="long"))
    kind = pq.read_table(long)["event_type"].to_numpy(zero_copy_only=False)
    assert np.array_equal(true_probabilities(long, np.flatnonzero(kind == "impression")), true_probabilities(wide))
    cart = int(np.flatnonzero(kind == "cart")[0])
    with pytest.raises(DataError, match=rf"row {cart:,} is a cart; only an impression has a chance of a click"):
        true_probabilities(long, [0, cart])


def test_what_is_no_synthetic_log_or_another_machines_is_refused(tmp_path):
    path = write_log(tmp_path / "log", SyntheticLog(**SMALL))
    with pytest.raises(DataError, match=r"has 30,000 rows, row 30,000 was asked for"):
        true_probabilities(path, [0, 30_000])
    with pytest.raises(DataError, match=r"row -1 was asked for"):
        true_probabilities(path, [-1])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "bare")
    with pytest.raises(DataError, match=r"`.*bare` is no synthetic log"):
        true_probabilities(tmp_path / "bare")
    with pytest.raises(DataError, match=r"`.*absent` cannot be read as Parquet"):
        true_probabilities(tmp_path / "absent")
    numbers = table.schema.metadata[FINGERPRINT].split()
    other = {**table.schema.metadata, FINGERPRINT: b" ".join([b"1.0", *numbers[1:]])}
    pq.write_table(table.replace_schema_metadata(other), tmp_path / "other")
    with pytest.raises(DataError, match=r"draws other users and items from seed 0"):
        true_probabilities(tmp_path / "other")
    assert isinstance(table, pa.Table)
