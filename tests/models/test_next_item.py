from __future__ import annotations

from functools import partial
from itertools import pairwise

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import logsigmoid

from lightning_mp.data.columns import Columns, ConstantEvent
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.item_catalogue import item_catalogue
from lightning_mp.data.label import TakenLabel, ValueLabel
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.datamodules.sequence_dataset import SequenceDataset
from lightning_mp.errors import ConfigurationError, DataError, SchemaError
from lightning_mp.models.next_item import NextItemModule
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.drawn_items import drawn_items
from lightning_mp.networks.generalised_bce import generalised_bce
from lightning_mp.networks.next_item_logits import next_item_logits
from lightning_mp.networks.sasrec import SASRec

ITEMS, LENGTH = 12, 8
SMALL = partial(SASRec, max_length=LENGTH, embedding_dim=16, blocks=1, dropout=0.0)
BEFORE = {"of": "order", "by": ["user"]}
FAST = partial(torch.optim.Adam, lr=1e-2)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Each item is followed by the next number, most of the time; item 99 comes up only at the very end."""
    draw = np.random.default_rng(2)
    user, item, time = [], [], []
    for who in range(80):
        at = int(draw.integers(ITEMS))
        for step in range(14):
            at = (at + 1) % ITEMS if draw.random() < 0.9 else int(draw.integers(ITEMS))
            user.append(who)
            item.append(at)
            time.append(1_600_000_000 + 1000 * step + who)
    item[-1] = 99
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    table = pa.table(
        {"u": user, "i": item, "t": time, "half": np.array(item) % 2, "liked": draw.random(len(item)) < 0.4}
    )
    pq.write_table(table, path)
    return path


def data(log, path, split=None, label=None, **more):
    return RankingDataModule(
        str(log), store=str(path), columns=Columns(user="u", item="i", time="t", event=ConstantEvent(constant="order")),
        label=label or TakenLabel(taken="order"), split=split or LeaveLastOut(leave_out=1), train_on="sequences",
        features=[
            FeatureSpec(name="item", kind="id", role="item", column="i"),
            FeatureSpec(name="half", kind="categorical", role="item"),
            FeatureSpec(name="before", kind="sequence", role="user", length=LENGTH, history=BEFORE),
        ], **{"batch_size": 16, **more},
    )  # fmt: skip


def trainer(tmp_path, **more):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    given = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "default_root_dir": tmp_path}
    return pl.Trainer(**{**given, **quiet, **more})


def fitted(tmp_path, datamodule, module=None, **more):
    pl.seed_everything(0, verbose=False)
    module = module or NextItemModule(SMALL, optimizer=FAST, objective="softmax")
    run = trainer(tmp_path, **more)
    run.fit(module, datamodule=datamodule)
    return run, module


@pytest.mark.parametrize("objective", ["softmax", "sampled_softmax", "gbce"])
def test_it_learns_what_follows_what(tmp_path, log, objective):
    module = NextItemModule(SMALL, optimizer=FAST, objective=objective, negatives=6)
    run, module = fitted(tmp_path, data(log, tmp_path / "store"), module, max_epochs=12)
    assert run.callback_metrics["train_loss"].dtype == torch.float32
    assert float(run.callback_metrics["val_mrr"]) > 0.7
    tested = run.test(module, datamodule=data(log, tmp_path / "store"), verbose=False)[0]
    assert tested["test_mrr"] > 0.7
    assert tested["test_recall"] >= tested["test_ndcg"]


@pytest.mark.parametrize("split", [LeaveLastOut(leave_out=2), TimeSplit(validation=0.1, test=0.2)])
def test_what_is_logged_is_a_full_ranking_of_each_row(tmp_path, log, split):
    datamodule = data(log, tmp_path / "store", split)
    run, module = fitted(tmp_path, datamodule)
    part, items = datamodule.store.load("validation"), datamodule.store.items().to_pylist()
    words = datamodule.store.vocabulary("item")
    rows_of = torch.from_numpy(words.encode(items).astype(np.int64))
    places = []
    module.eval()
    with torch.no_grad():
        states = module.network.encode(torch.from_numpy(part.history))[:, -1]
        scores = (states @ module.network.item_vectors()[rows_of].T).numpy()
    scores[:, rows_of.numpy() == 0] = -np.inf
    for row, item in enumerate(part.item):
        places.append(1 + int((scores[row] > scores[row, item]).sum()))
    places = np.array(places)
    assert float(run.callback_metrics["val_mrr"]) == pytest.approx((1 / places).mean(), rel=1e-3)
    ndcg = np.where(places <= 10, 1 / np.log2(places + 1), 0).mean()
    assert float(run.callback_metrics["val_ndcg"]) == pytest.approx(ndcg, abs=2e-3)


def test_seen_items_are_no_candidates(tmp_path, log):
    datamodule = data(log, tmp_path / "store", TimeSplit(validation=0.1, test=0.2))
    module = NextItemModule(SMALL, optimizer=FAST, objective="softmax", exclude_seen=True)
    run, _ = fitted(tmp_path, datamodule, module)
    assert float(run.callback_metrics["val_recall"]) == 1.0, "of twelve items fewer than ten are left"


def test_sequences_hold_every_item_once_as_a_target(tmp_path, log):
    datamodule = data(log, tmp_path / "store")
    datamodule.prepare_data()
    table = datamodule.store.load("train")
    batch = SequenceDataset(table, length=5)[torch.arange(len(SequenceDataset(table, length=5)))]
    for user in range(80):
        order = np.flatnonzero(table.user == user)
        items = table.ids[order[np.lexsort((table.row[order], table.time[order]))], 0].tolist()
        mine = batch["group"] == user
        pairs = zip(batch["history"][mine].flatten().tolist(), batch["target"][mine].flatten().tolist(), strict=True)
        assert sorted(pair for pair in pairs if pair[1]) == sorted(pairwise(items))
    assert (batch["history"][batch["target"] == 0] == 0).all()


def test_a_run_goes_on_with_the_same_draws(tmp_path, log):
    def module():
        return NextItemModule(partial(SMALL, dropout=0.0), optimizer=FAST, negatives=4, objective="gbce")

    _, whole = fitted(tmp_path, data(log, tmp_path / "store"), module(), max_epochs=2)
    run, _ = fitted(tmp_path, data(log, tmp_path / "store"), module(), max_epochs=1)
    run.save_checkpoint(tmp_path / "half.ckpt")
    resumed, run = module(), trainer(tmp_path, max_epochs=2)
    run.fit(resumed, datamodule=data(log, tmp_path / "store"), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    with pytest.raises(ConfigurationError, match=r"is of `.*NextItemModule`, and `.*RankingModule` is loading it"):
        RankingModule.load_from_checkpoint(tmp_path / "half.ckpt", network=SMALL, weights_only=True)
    other = data(log, tmp_path / "other", TimeSplit(validation=0.1, test=0.7))
    other.prepare_data()
    with pytest.raises(SchemaError, match="differs in `vocabulary_"):
        trainer(tmp_path).test(module(), datamodule=other, ckpt_path=tmp_path / "half.ckpt")


def test_rows_that_were_not_taken_are_neither_trained_on_nor_asked_for(tmp_path, log):
    liked = ValueLabel(value="liked", at_least=1)
    datamodule = data(log, tmp_path / "store", TimeSplit(validation=0.1, test=0.2), liked)
    run, module = fitted(tmp_path, datamodule)
    table = datamodule.store.load()
    dataset = SequenceDataset(table, length=LENGTH)
    batch = dataset[torch.arange(len(dataset))]
    for user in range(80):
        mine = np.flatnonzero((table.user == user) & (table.labels[:, 0] > 0))
        taken = table.ids[mine[np.argsort(table.time[mine])], 0].tolist()
        targets = batch["target"][batch["group"] == user]
        assert sorted(targets[targets > 0].tolist()) == sorted(taken[1:])
    part = datamodule.store.load("validation")
    rows = np.flatnonzero(part.labels[:, 0] > 0)
    assert 0 < len(rows) < len(part)
    module.eval()
    states = module.network.encode(torch.from_numpy(part.history[rows])).detach()[:, -1]
    catalogue = item_catalogue(datamodule.store)
    scores = (states @ module.network.item_vectors().detach()[torch.from_numpy(catalogue.row)].T).double().numpy()
    scores[:, catalogue.row == 0] = -np.inf
    own = scores[np.arange(len(rows)), part.item[rows]]
    places = (scores > own[:, None]).sum(1) + 1
    assert run.callback_metrics["val_mrr"].item() == pytest.approx((1 / places).mean(), abs=1e-5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_trains_as_float32_does(tmp_path, log, precision):
    scaler = torch.amp.GradScaler("cpu", init_scale=1e3) if precision == "16-mixed" else None
    found = {}
    for name, more in (("float32", {}), (precision, {"plugins": [MixedPrecision(precision, "cpu", scaler)]})):
        module = NextItemModule(SMALL, optimizer=FAST)
        run, module = fitted(tmp_path, data(log, tmp_path / "store"), module, max_epochs=6, **more)
        assert all(p.isfinite().all() for p in module.parameters())
        found[name] = float(run.callback_metrics["val_mrr"])
    assert found[precision] == pytest.approx(found["float32"], abs=0.1)


def test_the_losses_against_their_formulas():
    logits = torch.randn(30, 9) * 3
    exact = logits.double()
    share = 8 / 100
    for t in (0.0, 0.5, 1.0):
        beta = share * (t * (1 - 1 / share) + 1 / share)
        plain = -(logsigmoid(exact[:, 0]).exp() ** beta).log() - torch.log1p(-torch.sigmoid(exact[:, 1:])).sum(dim=1)
        found = generalised_bce(logits, items=100, calibration=t)
        torch.testing.assert_close(found.double(), plain / 9, rtol=1e-5, atol=1e-6)
    assert generalised_bce(logits.masked_fill(logits > 2, float("-inf")) * 1e4, items=100)[1:].isfinite().any()


def test_logits_of_places_against_a_loop():
    states, vectors = torch.randn(3, 4, 5), torch.randn(7, 5)
    target = torch.tensor([[0, 0, 2, 3], [1, 6, 4, 4], [0, 0, 0, 0]])
    drawn = torch.randint(1, 7, (3, 6))
    found = next_item_logits(states, target, vectors, drawn, correct=True)
    lines = []
    for b in range(3):
        for place in range(4):
            if own := int(target[b, place]):
                products = (states[b, place] @ vectors[drawn[b]].T).tolist()
                others = [-np.inf if n == own else p for n, p in zip(drawn[b].tolist(), products, strict=True)]
                lines.append([float(states[b, place] @ vectors[own]), *others])
    np.testing.assert_allclose(found.numpy(), np.array(lines), rtol=1e-4, atol=1e-5)
    whole = next_item_logits(states, target[:, -1], vectors, None)
    assert whole.shape == (2, 7)
    wanted = torch.logsumexp(states[0, -1] @ vectors[1:].T, dim=0)
    torch.testing.assert_close(torch.logsumexp(whole[0], dim=0), wanted, rtol=1e-5, atol=1e-5)


def test_draws_come_from_seed_and_step_alone():
    one = drawn_items(4, 50, size=9, seed=3, step=17)
    torch.manual_seed(5)
    assert torch.equal(one, drawn_items(4, 50, size=9, seed=3, step=17))
    assert one.min() >= 1
    assert one.max() <= 8
    others = [drawn_items(4, 50, size=9, **k) for k in ({"seed": 3, "step": 18}, {"seed": 4, "step": 17})]
    others.append(drawn_items(4, 50, size=9, seed=3, step=17, place=1))
    assert not any(torch.equal(one, other) for other in others)


def test_an_item_that_training_did_not_know_comes_last_or_with_its_likes(tmp_path, log):
    datamodule = data(log, tmp_path / "store")
    _, module = fitted(tmp_path, datamodule)
    catalogue = item_catalogue(datamodule.store)
    (cold,) = np.flatnonzero(catalogue.row == 0)
    with torch.no_grad():
        assert not module.catalogue_vectors(catalogue)[cold].any()
        module.cold_start = ["half"]
        likes = module.catalogue_vectors(catalogue)
        alike = np.flatnonzero((catalogue.ids[:, 1] == catalogue.ids[cold, 1]) & (catalogue.row > 0))
        wanted = module.network.item_vectors()[torch.from_numpy(catalogue.row[alike])].mean(dim=0)
    torch.testing.assert_close(likes[cold], wanted, rtol=1e-4, atol=1e-5)


def test_its_three_override_points(tmp_path, log):
    class Own(NextItemModule):
        def loss(self, logits, batch):
            return super().loss(logits, batch) * 0 + 7

        def score(self, logits):
            return logits

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run, module = fitted(tmp_path, data(log, tmp_path / "store"), Own(SMALL))
    assert isinstance(run.optimizers[0], torch.optim.SGD)
    assert float(run.callback_metrics["val_loss"]) == 7
    assert run.predict(module, datamodule=data(log, tmp_path / "store"))[0]["score"].min() < 0


def test_mistakes_are_named(tmp_path, log):
    with pytest.raises(ConfigurationError, match="must be one of softmax, sampled_softmax, gbce, got 'bpr'"):
        NextItemModule(SMALL, objective="bpr")
    with pytest.raises(ConfigurationError, match="`negatives` is 0"):
        NextItemModule(SMALL, negatives=0)

    class NoStates(nn.Module):
        def __init__(self, schema):
            super().__init__()

    with pytest.raises(ConfigurationError, match=r"network `NoStates` has no method `encode\(history\)`"):
        fitted(tmp_path, data(log, tmp_path / "store"), NextItemModule(NoStates))
    datamodule = data(log, tmp_path / "store")
    module = NextItemModule(SMALL(datamodule.schema))
    with pytest.raises(DataError, match="the batch has no `history`; it has `target`"):
        module.training_step({"target": torch.ones(2, 3)}, 0)
    nothing = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(DataError, match="`history` is float32, ids"):
        module.training_step({"history": nothing.float(), "target": nothing}, 0)
    with pytest.raises(DataError, match="feature `item` has id 77 at row 1 of the batch"):
        module.training_step({"history": torch.tensor([[1, 2], [77, 1]]), "target": torch.ones(2, 2).long()}, 0)
    without = RankingDataModule(store=datamodule.store.path.as_posix(), train_on="sequences")
    assert without.train_dataloader().dataset.length == LENGTH
    with pytest.raises(
        ConfigurationError, match="`cold_start` names `hlaf`; categorical features of the items are: `half`"
    ):
        NextItemModule(SMALL, cold_start=["hlaf"]).build(datamodule.schema)


def test_its_lists_are_those_of_each_users_first_row_in_the_part(tmp_path, log):
    datamodule = data(log, tmp_path / "store", TimeSplit(validation=0.1, test=0.2))
    _, module = fitted(tmp_path, datamodule)
    module.eval()
    part = datamodule.store.load("test")
    scores = module.list_scorer(datamodule.store)(np.array([3, 7, 10**6]))
    rows_of = item_catalogue(datamodule.store).row
    vectors = module.network.item_vectors().detach()[torch.from_numpy(rows_of)]
    for user, line in zip((3, 7), scores, strict=False):
        mine = np.flatnonzero(part.user == user)
        first = mine[np.lexsort((part.row[mine], part.time[mine]))[0]]
        state = module.network.encode(torch.from_numpy(part.history[first : first + 1])).detach()[:, -1]
        np.testing.assert_allclose(line[rows_of > 0], (state @ vectors.T).numpy()[0][rows_of > 0], rtol=1e-4, atol=1e-5)
        assert (line[rows_of == 0] < line[rows_of > 0].min()).all()
    assert len(set(scores[2][rows_of > 0].tolist())) == 1, "of a user that the part does not have nothing is said"
