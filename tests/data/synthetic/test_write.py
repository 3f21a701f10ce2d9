from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.synthetic import write
from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.true_probabilities import true_probabilities
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.errors import ArtifactError, ConfigurationError


def column(table, name):
    return table[name].to_numpy(zero_copy_only=False)


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """More rows than one part holds, so that the seams between parts are in it."""
    path = write_log(
        tmp_path_factory.mktemp("big") / "log.parquet", SyntheticLog(impressions=write.PART + 60_000, seed=11)
    )
    return path, pq.read_table(path)


def test_each_stage_lies_within_the_one_before_at_its_rate(big):
    path, table = big
    click, cart, order = (column(table, name) for name in ("click", "cart", "order"))
    assert not (cart & ~click).any()
    assert not (order & ~cart).any()
    chance, rows = true_probabilities(path), len(table)
    # Given the chances, clicks are independent: their number strays by the root of sum p (1 - p).
    assert click.sum() == pytest.approx(chance.sum(), abs=4 * np.sqrt((chance * (1 - chance)).sum()))
    assert chance.mean() == pytest.approx(0.05, rel=0.03)
    for flag, share in ((cart, 0.009), (order, 0.004)):
        assert flag.sum() == pytest.approx(share * rows, abs=4 * np.sqrt(share * rows) + 0.04 * share * rows)


def test_rows_are_in_order_of_time_and_inside_the_days(big):
    when = big[1]["event_time"].cast("int64").to_numpy()
    assert (np.diff(when) >= 0).all()
    first, days = np.datetime64("2024-01-01", "us").astype(np.int64), (when - when[0]) / 86.4e9
    assert 0 <= when[0] - first < 3600e6
    assert 27.9 < days[-1] < 28.3  # a last session may go on past midnight
    assert pa.types.is_timestamp(big[1].schema.field("event_time").type)


def test_shares_of_what_is_missing_are_those_of_the_rees46_head(big):
    table = big[1]
    assert 0.14 <= table["brand"].null_count / len(table) <= 0.18
    assert 0.30 <= table["category_code"].null_count / len(table) <= 0.34
    bare = {c for c, b in zip(column(table, "category_id"), column(table, "brand"), strict=True) if b is None}
    whole = {c for c, b in zip(column(table, "category_id"), column(table, "brand"), strict=True) if b is not None}
    assert bare - whole, "some categories have no brand at all"
    known = table["dwell_seconds"].is_valid().to_numpy(zero_copy_only=False)
    assert (known == column(table, "click")).all(), "dwell time is known after a click, and only then"


def test_sessions_and_prices_are_shaped_like_the_rees46_head(big):
    table = big[1]
    session, user, when = column(table, "session_id"), column(table, "user_id"), table["event_time"].cast("int64")
    size = np.unique(session, return_counts=True)[1]
    assert size.mean() == pytest.approx(3.44, abs=0.3)  # measured: 3.44
    assert (size == 1).mean() == pytest.approx(0.41, abs=0.02)  # measured: 41 %
    assert np.quantile(size, 0.99) == pytest.approx(21, abs=3)  # measured: 21
    assert size.max() <= 51
    order = np.lexsort((when.to_numpy(), session))
    same = np.diff(session[order]) == 0
    assert (np.diff(user[order])[same] == 0).all(), "a session has one user"
    pause = np.diff(when.to_numpy()[order])[same] / 1e6
    assert np.median(pause) == pytest.approx(33, rel=0.05)  # measured: 33 s
    price = column(table, "price")
    assert np.log(price).std() == pytest.approx(1.26, abs=0.35)  # measured: 1.26 over events; few items, wide bounds
    assert 0.88 <= price.min() <= price.max() <= 2574.07
    assert (column(table, "position") <= 10).all()


def test_users_come_back_and_few_items_take_most(big):
    table = big[1]
    sessions = len(set(zip(column(table, "user_id"), column(table, "session_id"), strict=True)))
    assert sessions / len(set(column(table, "user_id"))) > 20
    shown = np.sort(np.unique(column(table, "item_id"), return_counts=True)[1])[::-1]
    assert shown[: len(shown) // 10].sum() / shown.sum() == pytest.approx(0.42, abs=0.05)  # measured: 46 % over views
    late = np.array(
        [when for when, user in zip(column(table, "event_time"), column(table, "user_id"), strict=True)
         if user >= 500_000_000 + 1_250]
    )  # fmt: skip
    days = (late - late.min()) / np.timedelta64(1, "D")
    assert (days > 14).mean() > 0.6, "one user in six arrives in the course of the log"


def test_an_attribute_is_the_same_wherever_its_owner_turns_up(big):
    table = big[1]
    for owner, names in (
        ("user_id", ("segment", "age", "spend")),
        ("item_id", ("category_id", "category_code", "brand", "price")),
    ):
        for name in names:
            pairs = set(zip(column(table, owner), column(table, name), strict=True))
            assert len(pairs) == len({key for key, _ in pairs})


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path):
    digests = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        path = write_log(tmp_path / name, SyntheticLog(impressions=5_000, seed=seed))
        digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_both_forms_tell_of_the_same_draw(tmp_path):
    wide = pq.read_table(write_log(tmp_path / "wide", SyntheticLog(impressions=20_000, users=200, items=50)))
    long = pq.read_table(
        write_log(tmp_path / "long", SyntheticLog(impressions=20_000, users=200, items=50, form="long"))
    )
    kinds, when = column(long, "event_type"), long["event_time"].cast("int64").to_numpy()
    assert (np.diff(when) >= 0).all()
    shown = long.filter(pa.array(kinds == "impression"))
    common = [name for name in wide.schema.names if name in long.schema.names and name != "dwell_seconds"]
    assert shown.select(common).equals(wide.select(common), check_metadata=False)
    key = ["session_id", "item_id", "user_id"]
    for kind in ("click", "cart", "order"):
        events = long.filter(pa.array(kinds == kind)).select(key)
        flagged = wide.filter(wide[kind]).select(key)
        assert _rows(events) == _rows(flagged)
    clicked = column(long, "event_type") == "click"
    assert (long["dwell_seconds"].is_valid().to_numpy(zero_copy_only=False) == clicked).all()


def _rows(table):
    return sorted(zip(*(column(table, name) for name in table.schema.names), strict=True))


def test_time_and_bytes_grow_with_the_rows_and_memory_does_not(tmp_path):
    """Row groups are the parts that are held in memory; each is bounded whatever the size of the log."""
    sizes = {}
    for rows in (1, 10, write.PART // 2, write.PART * 2 + 1):
        path = write_log(tmp_path / f"{rows}", SyntheticLog(impressions=rows, users=50, items=20))
        meta = pq.read_metadata(path)
        assert meta.num_rows == rows
        assert max(meta.row_group(group).num_rows for group in range(meta.num_row_groups)) <= write.PART * 1.01
        sizes[rows] = path.stat().st_size
    assert 3 < sizes[write.PART * 2 + 1] / sizes[write.PART // 2] < 5


@pytest.mark.parametrize("one", [{"users": 1}, {"items": 1}, {"days": 1}, {"users": 1, "items": 1, "impressions": 1}])
def test_the_smallest_worlds_stand(tmp_path, one):
    path = write_log(tmp_path / "log", SyntheticLog(**{"impressions": 300, "users": 5, "items": 5, **one}))
    assert np.isfinite(true_probabilities(path)).all()
    faults = Faults(negative_ages=True, exploding_spend=True, sparse_bursts=True, future_leaks=True)
    path = write_log(
        tmp_path / "faulty", SyntheticLog(faults=faults, **{"impressions": 300, "users": 5, "items": 5, **one})
    )
    assert np.isfinite(true_probabilities(path)).all()


def test_a_log_that_is_there_is_not_drawn_again_and_another_is(tmp_path):
    path = tmp_path / "log"
    write_log(path, SyntheticLog(impressions=1_000))
    before = path.stat()
    calls = []
    write_log(path, SyntheticLog(impressions=1_000), progress=lambda done, total: calls.append((done, total)))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert calls == []
    write_log(path, SyntheticLog(impressions=1_001), progress=lambda done, total: calls.append((done, total)))
    assert pq.read_metadata(path).num_rows == 1_001
    assert calls == [(1_001, 1_001)]
    path.write_bytes(b"not parquet")
    write_log(path, SyntheticLog(impressions=1_000))
    assert pq.read_metadata(path).num_rows == 1_000


def test_a_kill_leaves_the_old_log_and_the_next_writer_clears_up(tmp_path):
    path = write_log(tmp_path / "log", SyntheticLog(impressions=1_000))
    before = path.read_bytes()
    script = (
        "from lightning_mp.data.synthetic.write import SyntheticLog, write_log; "
        f"write_log({str(path)!r}, SyntheticLog(impressions=50_000_000))"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    while len(list(tmp_path.iterdir())) < 2:
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert path.read_bytes() == before
    write_log(path, SyntheticLog(impressions=2_000))
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_way_and_a_bad_setting_are_named(tmp_path):
    with pytest.raises(ArtifactError, match="is a folder"):
        write_log(tmp_path, SyntheticLog(impressions=10))
    with pytest.raises(ConfigurationError, match=r"`synthetic.impressions` must be a whole number from 1, got 0"):
        write_log(tmp_path / "log", SyntheticLog(impressions=0))
    assert not (tmp_path / "log").exists()
