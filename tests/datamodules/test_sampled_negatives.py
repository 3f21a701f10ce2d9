from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.datamodules.sampled_negatives import SampledNegatives
from lightning_mp.errors import ConfigurationError

ITEMS = 12


@pytest.mark.parametrize("strategy", ["uniform", "popularity"])
def test_draws_follow_the_weights_and_miss_the_rows_own(strategy):
    draw = np.random.default_rng()
    ids = draw.choice(ITEMS - 1, 5000, p=np.arange(1, ITEMS) / np.arange(1, ITEMS).sum()).astype(np.int32) + 1
    negatives = SampledNegatives(
        feature="item", count=40, strategy=strategy, exponent=0.75, seed=int(draw.integers(99))
    )
    weights = negatives.weights(ids, ITEMS)
    drawn = negatives.draw(torch.tensor(ids), torch.arange(5000), epoch=2, weights=weights).numpy()
    assert drawn.shape == (5000, 40)
    assert drawn.dtype == np.int64
    assert not (drawn == ids[:, None]).any()
    expected = np.bincount(ids, minlength=ITEMS)[1:] ** 0.75 if strategy == "popularity" else np.ones(ITEMS - 1)
    for own in (1, 5, 11):
        share = expected.copy()
        share[own - 1] = 0
        share /= share.sum()
        found = np.bincount(drawn[ids == own].ravel(), minlength=ITEMS)[1:]
        sigma = np.sqrt(found.sum() * share * (1 - share)) + 1e-9
        assert (np.abs(found - found.sum() * share) < 5 * sigma + 1e-6).all()


def test_in_batch_draws_are_items_of_other_rows_in_their_share():
    draw = np.random.default_rng()
    own = torch.tensor(draw.choice([3, 4, 4, 4, 9], 400))
    drawn = SampledNegatives(feature="i", count=200, strategy="in_batch").draw(
        own, torch.arange(400), epoch=0, weights=np.ones(1)
    )
    assert set(drawn.unique().tolist()) <= set(own.unique().tolist())
    assert not (drawn == own[:, None]).any()
    of_three = drawn[own == 3].flatten()
    share = float((own == 4).sum() / ((own == 4).sum() + (own == 9).sum()))
    assert abs(float((of_three == 4).float().mean()) - share) < 5 * np.sqrt(share * (1 - share) / len(of_three))
    alone = SampledNegatives(feature="i", count=2, strategy="in_batch")
    assert alone.draw(torch.tensor([7, 7]), torch.arange(2), epoch=0, weights=np.ones(1)).tolist() == [[7, 7], [7, 7]]


def test_an_unknown_item_may_draw_any():
    drawn = SampledNegatives(feature="i", count=500).draw(
        torch.tensor([0]), torch.tensor([1]), epoch=0, weights=np.ones(5)
    )
    assert drawn.unique().tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("strategy", ["uniform", "popularity", "in_batch"])
def test_a_batch_has_the_same_negatives_whoever_makes_it(tmp_path, strategy):
    draw = np.random.default_rng()
    FeatureStore(tmp_path / "store").write(pa.table({"item": draw.integers(0, 30, 500), "x": draw.normal(size=500)}))

    def batches(epoch, **more):
        data = RankingDataModule(
            store=str(tmp_path / "store"),
            batch_size=64,
            sampled_negatives=SampledNegatives(feature="item", count=3, strategy=strategy, seed=5),
            **more,
        )
        loader = data.train_dataloader()
        loader.set_epoch(epoch)
        return {tuple(b["row"].tolist()): b["negatives"] for b in loader}

    threaded, workers, later = batches(1), batches(1, num_workers=2), batches(2)
    assert threaded.keys() == workers.keys()
    assert all(torch.equal(threaded[rows], workers[rows]) for rows in threaded)
    assert {t.shape[1] for t in threaded.values()} == {3}
    assert [t.tolist() for t in threaded.values()] != [t.tolist() for t in later.values()]
    if strategy != "in_batch":  # by row, whatever batch it is in
        by_row = {row: n.tolist() for rows, batch in threaded.items() for row, n in zip(rows, batch, strict=True)}
        other = batches(1, shuffle="none")
        assert all(by_row[row] == n.tolist() for rows, b in other.items() for row, n in zip(rows, b, strict=True))


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`negatives.count` must be at least 1, got 0"):
        SampledNegatives(feature="item", count=0)
    with pytest.raises(ConfigurationError, match=r"`negatives.strategy` must be 'uniform', .* got 'hard'"):
        SampledNegatives(feature="item", strategy="hard")
    FeatureStore(tmp_path / "store").write(pa.table({"item": [1, 2, 3], "x": [1.0, 2.0, 3.0]}))
    data = RankingDataModule(store=str(tmp_path / "store"), sampled_negatives=SampledNegatives(feature="x"))
    with pytest.raises(ConfigurationError, match=r"`negatives.feature` is `x`, indexed are: `item`"):
        data.train_dataloader()
