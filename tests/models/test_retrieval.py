from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from lightning_mp.data.item_catalogue import item_catalogue
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.errors import ConfigurationError, DataError, SchemaError
from lightning_mp.models.ranking import RankingModule
from lightning_mp.models.retrieval import RetrievalModule
from lightning_mp.networks.two_tower import TwoTower
from lightning_mp.schema import Feature, FeatureSchema

USERS, ITEMS, GROUPS = 60, 40, 4
INDEXED = {"source_dtype": "int64", "stored_dtype": "int32"}
SMALL = partial(TwoTower, embedding_dim=8, hidden=(), output_dim=8, temperature=1.0, normalize=False)
FAST = partial(torch.optim.Adam, lr=2e-2)


def schema(users=USERS + 1):
    return FeatureSchema(
        features=(
            Feature(name="user", kind="id", role="user", vocabulary_size=users, **INDEXED),
            Feature(name="item", kind="id", role="item", vocabulary_size=ITEMS + 1, **INDEXED),
            Feature(name="genre", kind="categorical", role="item", vocabulary_size=GROUPS + 1, **INDEXED),
            Feature(name="taken", kind="numeric", role="label", source_dtype="float", stored_dtype="float32"),
        )
    )


def rows(count, draw, first, *, cold=False):
    """Users keep to items of their own group; codes from ITEMS on are items that training never saw."""
    user = draw.integers(0, USERS, count)
    item = (user % GROUPS + GROUPS * draw.integers(0, ITEMS // GROUPS, count)) % ITEMS
    code, known = item.copy(), item + 1
    if cold:
        code[:8] = ITEMS + np.arange(8)
        item[:8] = user[:8] = np.arange(8)
        known[:8] = 0
    keys = {"@user": user, "@item": code, "@time": first + np.arange(count), "@row": first + np.arange(count)}
    return pa.table({"user": user + 1, "item": known, "genre": item % GROUPS + 1, "taken": np.ones(count), **keys})


def write(path, draw, **more):
    store = FeatureStore(path)
    parts = {"train": rows(1500, draw, 0), "validation": rows(300, draw, 10**4)}
    parts["test"] = rows(300, draw, 2 * 10**4, cold=True)
    keys = {"users": pa.array(range(USERS)), "items": pa.array(range(ITEMS + 8))}
    store.write(parts, schema=schema(**more), **keys)
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write(tmp_path_factory.mktemp("taken") / "store", np.random.default_rng(3))


def trainer(tmp_path, **more):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    given = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "default_root_dir": tmp_path}
    return pl.Trainer(**{**given, **quiet, **more})


def fitted(tmp_path, store, module=None, **more):
    pl.seed_everything(0, verbose=False)
    module = module or RetrievalModule(SMALL, optimizer=FAST, exclude_seen=False)
    run = trainer(tmp_path, **more)
    run.fit(module, datamodule=RankingDataModule(store=str(store.path), batch_size=250))
    return run, module


def ndcg(scores, taken, k=10):
    """Of one user, the slow way."""
    order = np.argsort(-scores, kind="stable")[:k]
    gain = sum(1 / np.log2(place + 2) for place, item in enumerate(order) if item in taken)
    return gain / sum(1 / np.log2(place + 2) for place in range(min(k, len(taken))))


def test_it_learns_tastes_and_what_is_logged_is_a_full_ranking(tmp_path, store):
    run, module = fitted(tmp_path, store, max_epochs=8)
    found = run.callback_metrics
    assert found["train_loss"].dtype == torch.float32
    part = store.load("validation")
    module.eval()
    vectors = module.catalogue_vectors(item_catalogue(store)).detach()
    assert vectors.shape == (ITEMS + 8, 8)
    values, by_chance = [], []
    for user in np.unique(part.user):
        mine = np.flatnonzero(part.user == user)
        batch = {"ids": torch.from_numpy(part.ids[mine[:1]])}
        scores = (module.network.user_vectors(batch) @ vectors.T).detach().numpy()[0]
        values.append(ndcg(scores, set(part.item[mine].tolist())))
        by_chance.append(ndcg(np.random.default_rng(user).random(ITEMS + 8), set(part.item[mine].tolist())))
    assert float(found["val_ndcg"]) == pytest.approx(np.mean(values), abs=1e-5)
    assert np.mean(values) > np.mean(by_chance) + 0.2


def test_what_was_seen_is_neither_a_candidate_nor_asked_for(tmp_path, store):
    pairs = {(u, i) for u, i in zip(*(getattr(store.load("train"), n).tolist() for n in ("user", "item")), strict=True)}
    part = store.load("validation")
    new = {u for u, i in zip(part.user.tolist(), part.item.tolist(), strict=True) if (u, i) not in pairs}
    run, _ = fitted(tmp_path, store, RetrievalModule(SMALL, optimizer=FAST), max_epochs=2)
    assert np.isfinite(float(run.callback_metrics["val_ndcg"])) == bool(new)


def test_the_correction_finds_popular_items_that_a_bare_softmax_pushes_down(tmp_path):
    draw = np.random.default_rng(11)
    popular = draw.random(4000) < 0.7
    item = np.where(popular, draw.integers(0, 3, 4000), draw.integers(3, ITEMS, 4000))
    user = draw.integers(0, USERS, 4000)
    keys = {"@user": user, "@item": item, "@time": np.arange(4000), "@row": np.arange(4000)}
    table = pa.table({"user": user + 1, "item": item + 1, "genre": item % GROUPS + 1, "taken": np.ones(4000), **keys})
    store = FeatureStore(tmp_path / "popular")
    parts = {"train": table.slice(0, 3000), "validation": table.slice(3000)}
    store.write(parts, schema=schema(), users=pa.array(range(USERS)), items=pa.array(range(ITEMS)))
    found = {}
    for log_q in (True, False):
        module = RetrievalModule(SMALL, optimizer=FAST, exclude_seen=False, log_q=log_q)
        run, _ = fitted(tmp_path, store, module, max_epochs=3)
        found[log_q] = float(run.callback_metrics["val_ndcg"])
    assert found[True] > found[False] + 0.08


def test_weights_and_the_own_item_among_candidates_against_a_loop(store):
    module = RetrievalModule(SMALL(schema()))
    batch = RankingDataModule(store=str(store.path), batch_size=64).train_dataloader().dataset[torch.arange(40)]
    logits = module.negatives(module.network, batch, batch["ids"][:, 1], training=True).double()
    own = batch["ids"][:, 1].tolist()
    counts = {item: own.count(item) for item in own}
    with torch.no_grad():
        users, items = module.network.user_vectors(batch).double(), module.network.item_vectors(batch).double()
    losses = []
    for i in range(40):
        line = {
            j: float(users[i] @ items[j]) - np.log(counts[own[j]] / 40) for j in range(40) if j == i or own[j] != own[i]
        }
        losses.append(np.log(sum(np.exp(value) for value in line.values())) - line[i])
        assert all(torch.isinf(logits[i, j]) == (j not in line) for j in range(40))
    weight = torch.rand(40) + 0.1
    assert module.loss(logits.float(), {}).item() == pytest.approx(np.mean(losses), rel=1e-5)
    weighed = module.loss(logits.float(), {"weight": weight}).item()
    assert weighed == pytest.approx(np.average(losses, weights=weight), rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_trains_as_float32_does(tmp_path, store, precision):
    scaler = torch.amp.GradScaler("cpu", init_scale=1e3) if precision == "16-mixed" else None
    plugin = MixedPrecision(precision, "cpu", scaler)
    found = {}
    for name, more in (("float32", {}), (precision, {"plugins": [plugin]})):
        run, module = fitted(tmp_path, store, max_epochs=4, **more)
        assert all(p.isfinite().all() for p in module.parameters())
        found[name] = {key: float(run.callback_metrics[key]) for key in ("train_loss", "val_ndcg")}
    assert found[precision] == pytest.approx(found["float32"], abs=0.05)


def test_a_run_goes_on_with_the_same_negatives_and_counts(tmp_path, store):
    def module():
        return RetrievalModule(SMALL, optimizer=FAST, cached_negatives=700, exclude_seen=False)

    _, whole = fitted(tmp_path, store, module(), max_epochs=2)
    run, _ = fitted(tmp_path, store, module(), max_epochs=1)
    run.save_checkpoint(tmp_path / "half.ckpt")
    resumed, run = module(), trainer(tmp_path, max_epochs=2)
    data = RankingDataModule(store=str(store.path), batch_size=250)
    run.fit(resumed, datamodule=data, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    states = whole.state_dict(), resumed.state_dict()
    assert states[0]["negatives.cache.rows"].shape == (700,)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert int(states[0]["negatives.frequency.counts"].sum()) == 3000
    with pytest.raises(ConfigurationError, match=r"is of `.*RetrievalModule`, and `.*RankingModule` is loading it"):
        RankingModule.load_from_checkpoint(tmp_path / "half.ckpt", network=SMALL, weights_only=True)
    other = write(tmp_path / "other", np.random.default_rng(1), users=USERS + 2)
    data = RankingDataModule(store=str(other.path))
    with pytest.raises(SchemaError, match="feature `user` differs in `vocabulary_size`"):
        trainer(tmp_path).test(module(), datamodule=data, ckpt_path=tmp_path / "half.ckpt")


def test_items_that_training_did_not_know_fall_to_the_unknown_row_or_to_their_likes(tmp_path, store):
    _, module = fitted(tmp_path, store, max_epochs=1)
    catalogue = item_catalogue(store)
    assert (catalogue.row[ITEMS:] == 0).all()
    with torch.no_grad():
        plain = module.catalogue_vectors(catalogue)
        genre = torch.from_numpy(catalogue.ids[ITEMS : ITEMS + 1])
        unknown = module.network.item_vectors({"ids": genre})
        module.cold_start = ["genre"]
        likes = module.catalogue_vectors(catalogue)
    torch.testing.assert_close(plain[ITEMS : ITEMS + 1], unknown)
    assert torch.equal(likes[:ITEMS], plain[:ITEMS])
    for place in range(ITEMS, ITEMS + 8):
        alike = np.flatnonzero((catalogue.ids[:ITEMS, 2] == catalogue.ids[place, 2]) & (catalogue.row[:ITEMS] > 0))
        torch.testing.assert_close(likes[place], plain[alike].mean(dim=0), rtol=1e-4, atol=1e-5)
    module.cold_start = ["colour"]
    with pytest.raises(ConfigurationError, match="names `colour`; categorical features of the items are: `genre`"):
        module.catalogue_vectors(catalogue)


def test_its_three_override_points(tmp_path, store):
    class Doubled(RetrievalModule):
        def loss(self, logits, batch):
            return super().loss(logits, batch) * 0 + 5

        def score(self, logits):
            return logits

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run, module = fitted(tmp_path, store, Doubled(SMALL))
    assert isinstance(run.optimizers[0], torch.optim.SGD)
    assert float(run.callback_metrics["val_loss"]) == 5
    data = RankingDataModule(store=str(store.path))
    first = run.predict(module, datamodule=data)[0]
    assert set(first) == {"score", "row", "user", "item"}
    assert first["score"].min() < 0


def test_mistakes_are_named(tmp_path, store):
    with pytest.raises(ConfigurationError, match="`cached_negatives` must be at least 0, got -1"):
        RetrievalModule(SMALL, cached_negatives=-1)

    class OneTower(nn.Module):
        def __init__(self, schema):
            super().__init__()

    with pytest.raises(ConfigurationError, match=r"network `OneTower` has no method `user_vectors\(batch\)`"):
        fitted(tmp_path, store, RetrievalModule(OneTower))
    without = FeatureSchema(features=tuple(f for f in schema().features if f.name != "item"))
    with pytest.raises(ConfigurationError, match="the schema has 0 features of kind `id` and role `item`"):
        RetrievalModule(SMALL).build(without)
    module = RetrievalModule(SMALL(schema()))
    batch = {"ids": torch.tensor([[1, 2, 1], [2, 3, 1]]), "labels": torch.zeros(2)}
    with pytest.raises(DataError, match="the batch has one row, and the other rows are its negatives"):
        module.training_step({"ids": batch["ids"][:1]}, 0)
    with pytest.raises(
        ConfigurationError, match="`cold_start` names `colour`; categorical features of the items are: `genre`"
    ):
        RetrievalModule(SMALL, cold_start=["genre", "colour"]).build(schema())
    context = Feature(name="hour", kind="categorical", role="context", vocabulary_size=25, **INDEXED)
    with pytest.raises(
        ConfigurationError, match="names `hour`, which is `categorical` of role `context`; categorical f"
    ):
        RetrievalModule(SMALL, cold_start=["hour"]).build(FeatureSchema(features=(*schema().features, context)))
    with pytest.raises(DataError, match="the batch has no rows"):
        module.training_step({"ids": batch["ids"][:0]}, 0)
    with pytest.raises(DataError, match="feature `item` has id 41 at row 1"):
        module.training_step({"ids": torch.tensor([[1, 2, 1], [2, 41, 1]])}, 0)
    with pytest.raises(DataError, match="feature `user` in `ids` is float32, ids are integers"):
        module.training_step({"ids": batch["ids"].float()}, 0)
