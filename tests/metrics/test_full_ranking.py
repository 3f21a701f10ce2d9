from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.full_ranking import full_ranking
from lightning_mp.metrics.mrr import MRR
from lightning_mp.metrics.ndcg import NDCG
from lightning_mp.metrics.recall import Recall

csr_array = pytest.importorskip("scipy.sparse").csr_array

NAMES = ("ndcg", "recall", "precision", "hit_rate", "mrr")


def drawn(users=40, items=30, levels=None, seed=None):
    """Scores, relevant and seen pairs; every fifth user has nothing relevant."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(users, items)) if levels is None else rng.integers(levels, size=(users, items)) * 1.0
    role = rng.choice(3, p=[0.6, 0.2, 0.2], size=(users, items))
    relevant, seen = role == 1, role == 2
    relevant[np.arange(users) % 5 == 0] = False
    free = np.flatnonzero(~relevant.any(1) & (np.arange(users) % 5 != 0))
    relevant[free, 0], seen[free, 0] = True, False
    return scores, relevant * 1.0, seen * 1.0


def one_order(order, relevant, k):
    """The metrics of one list, by their definitions."""
    gains = relevant[order]
    hits = gains[:k] > 0
    discount = 1 / np.log2(np.arange(2, len(order) + 2))
    best = np.sort(relevant)[::-1]
    places = np.flatnonzero(gains > 0)
    return {
        "ndcg": (gains * discount)[:k].sum() / (best * discount)[:k].sum(),
        "recall": hits.sum() / (relevant > 0).sum(),
        "precision": hits.sum() / k,
        "hit_rate": float(hits.any()),
        "mrr": 1 / (places[0] + 1),
    }


@pytest.mark.parametrize("k", [1, 5, 10, 50])
def test_each_list_is_what_sorting_it_gives(k):
    scores, relevant, seen = drawn()
    result = full_ranking(lambda users: scores[users], csr_array(relevant), seen=csr_array(seen), k=k)
    assert result.users.tolist() == np.flatnonzero(relevant.any(1)).tolist()
    for place, user in enumerate(result.users):
        candidates = np.flatnonzero(seen[user] == 0)
        order = np.argsort(-scores[user, candidates])
        for name, value in one_order(order, relevant[user, candidates], k).items():
            assert getattr(result, name)[place] == pytest.approx(value), name
    assert result.relevant.tolist() == (relevant > 0).sum(1)[result.users].tolist()
    assert result.mean() == {name: pytest.approx(getattr(result, name).mean()) for name in NAMES}


def test_ties_are_worth_the_mean_of_their_orders():
    scores, relevant, _ = drawn(12, 9, levels=3)
    result = full_ranking(lambda users: scores[users], csr_array(relevant), k=3)
    rng = np.random.default_rng()
    for place, user in enumerate(result.users):
        values = [one_order(np.lexsort((rng.random(9), -scores[user])), relevant[user] * 1.0, 3) for _ in range(3000)]
        for name in NAMES:
            drawn_values = np.array([value[name] for value in values])
            # 3000 orders drawn: 6 standard errors
            bound = 6 * drawn_values.std() / np.sqrt(3000) + 1e-9
            assert abs(getattr(result, name)[place] - drawn_values.mean()) <= bound, name


@pytest.mark.parametrize("levels", [None, 4])
def test_the_metrics_of_the_test_step_agree(levels):
    scores, relevant, _ = drawn(levels=levels)
    result = full_ranking(lambda users: scores[users], csr_array(relevant), k=5)
    rows = (torch.from_numpy(scores).flatten(), torch.from_numpy(relevant).flatten())
    users = torch.arange(40).repeat_interleave(30)
    for metric, name in ((NDCG(5), "ndcg"), (Recall(5), "recall"), (MRR(), "mrr")):
        metric.update(*rows, users)
        assert metric.compute().item() == pytest.approx(result.mean()[name], abs=1e-6)
        assert metric.counted == len(result.users)


@pytest.mark.parametrize("levels", [None, 3])
def test_the_chunks_do_not_matter_and_each_user_is_scored_once(levels):
    scores, relevant, seen = drawn(levels=levels)
    asked, results = [], []
    for max_bytes in (1, 24 * 30 * 7, 2**27):
        called = []

        def score(users, called=called):
            called.append(users)
            return scores[users]

        results.append(full_ranking(score, csr_array(relevant), seen=csr_array(seen), max_bytes=max_bytes))
        asked.append(np.concatenate(called).tolist())
    assert asked[0] == asked[1] == asked[2] == np.flatnonzero(relevant.any(1)).tolist()
    for name in (*NAMES, "users"):
        assert all((getattr(other, name) == getattr(results[0], name)).all() for other in results[1:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_scores_are_ranked_as_they_are(dtype):
    scores, relevant, _ = drawn()
    scores = scores.astype(dtype)
    narrow = full_ranking(lambda users: scores[users], csr_array(relevant))
    wide = full_ranking(lambda users: scores[users].astype(np.float64), csr_array(relevant))
    assert narrow.mean() == wide.mean()


def test_gains_count_in_ndcg_alone():
    scores, relevant, _ = drawn()
    gains = relevant * np.random.default_rng().uniform(0.1, 1, relevant.shape)
    graded = full_ranking(lambda users: scores[users], csr_array(gains), k=4)
    plain = full_ranking(lambda users: scores[users], csr_array(relevant), k=4)
    assert all(graded.mean()[name] == plain.mean()[name] for name in NAMES[1:])
    for place, user in enumerate(graded.users):
        assert graded.ndcg[place] == pytest.approx(one_order(np.argsort(-scores[user]), gains[user], 4)["ndcg"])


def test_a_slice_of_items_counts_its_items_among_all_candidates():
    scores, relevant, seen = drawn()
    tail = np.arange(30) >= 20
    nothing = np.zeros(30, dtype=bool)
    result = full_ranking(
        lambda users: scores[users],
        csr_array(relevant),
        seen=csr_array(seen),
        item_slices={"tail": tail, "none": nothing},
        max_bytes=24 * 30 * 3,
    )
    alone = full_ranking(lambda users: scores[users], csr_array(relevant * tail), seen=csr_array(seen))
    for name in (*NAMES, "users", "relevant"):
        assert (getattr(result.slices["tail"], name) == getattr(alone, name)).all()
    assert len(result.slices["none"].users) == 0
    assert all(np.isnan(value) for value in result.slices["none"].mean().values())


def test_some_users_alone_before_or_after():
    scores, relevant, _ = drawn()
    whole = full_ranking(lambda users: scores[users], csr_array(relevant))
    part = full_ranking(lambda users: scores[users], csr_array(relevant), users=[0, 3, 11, 12])
    kept = whole.where(np.isin(whole.users, [0, 3, 11, 12]))
    assert part.users.tolist() == kept.users.tolist() == [3, 11, 12]
    assert part.mean() == kept.mean()
    with pytest.raises(DataError, match=r"the mask has shape \(3,\) and dtype int64"):
        whole.where(np.array([1, 2, 3]))


def test_memory_stays_bounded_however_many_users():
    users, items, budget = 4000, 2000, 2**24  # 64 MB of scores in all
    relevant = csr_array((np.ones(users), (np.arange(users), np.arange(users) % items)), shape=(users, items))
    rng = np.random.default_rng()

    def score(codes):
        return rng.random((len(codes), items))

    tracemalloc.start()
    full_ranking(score, relevant, max_bytes=budget)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * budget


def test_what_cannot_be_ranked_is_named():
    scores, relevant, _ = drawn()
    good = csr_array(relevant)
    nan = scores.copy()
    nan[3, 4:6] = np.nan
    with pytest.raises(DataError, match="2 of the 30 scores of user 3 are not finite"):
        full_ranking(lambda users: nan[users], good)
    with pytest.raises(DataError, match=r"`score` gave shape \(32, 29\) for 32 users and 30 items"):
        full_ranking(lambda users: scores[users, :29], good)
    both = csr_array(([1.0], ([2], [0])), shape=(40, 30))
    with pytest.raises(DataError, match="item 0 of user 2 is both seen and relevant"):
        full_ranking(lambda users: scores[users], both, seen=both)
    with pytest.raises(DataError, match=r"`relevant` has shape \(40, 30\), `seen` has \(40, 31\)"):
        full_ranking(lambda users: scores[users], good, seen=csr_array((40, 31)))
    with pytest.raises(DataError, match="`relevant` has a value that is not above 0"):
        full_ranking(lambda users: scores[users], csr_array(-relevant))
    with pytest.raises(DataError, match="no user has a relevant item"):
        full_ranking(lambda users: scores[users], csr_array((40, 30)))
    with pytest.raises(DataError, match="`relevant` is no sparse matrix but ndarray"):
        full_ranking(lambda users: scores[users], relevant)
    with pytest.raises(ConfigurationError, match="`k` must be at least 1, got 0"):
        full_ranking(lambda users: scores[users], good, k=0)
