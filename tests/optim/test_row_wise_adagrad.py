from __future__ import annotations

import copy
import io
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_mp.callbacks.gradient_clipping import GradientClipping
from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor
from lightning_mp.errors import ConfigurationError
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad
from lightning_mp.precision.bounded_grad_scaler import BoundedGradScaler
from lightning_mp.schema import Feature, FeatureSchema

SETTINGS = {"lr": 0.05, "eps": 1e-8, "initial_accumulator_value": 0.1, "weight_decay": 0.01}


def oracle(weight, gradients, *, lr, eps, initial_accumulator_value, weight_decay):
    """Row by row in float64; a row whose gradient is `None` is not touched."""
    weight = weight.double().numpy().copy()
    sums = np.full(weight.shape if weight.ndim < 2 else len(weight), initial_accumulator_value)
    for gradient in gradients:
        for row, of_loss in enumerate(gradient):
            if of_loss is not None:
                g = of_loss + weight_decay * weight[row]
                sums[row] += np.mean(g**2)
                weight[row] -= lr * g / (np.sqrt(sums[row]) + eps)
    return weight, sums


def sparse(shape, occurrences):
    rows = torch.randint(0, shape[0], (occurrences,))
    return torch.sparse_coo_tensor(rows[None], torch.randn(occurrences, *shape[1:]), shape, check_invariants=True)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("shape", [(7,), (5, 3), (1, 9)])
def test_a_dense_step_is_the_formula(shape, foreach):
    weight = nn.Parameter(torch.randn(shape))
    before, gradients = weight.detach().clone(), torch.randn(4, *shape)
    optimizer = RowWiseAdagrad([weight], **SETTINGS, foreach=foreach)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(weight.grad, gradient), "a step must not change the gradient"
    expected, sums = oracle(before, gradients.double().numpy(), **SETTINGS)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(optimizer.state[weight]["sum"].numpy().reshape(sums.shape), sums, rtol=1e-5)


@pytest.mark.parametrize("coalesced", [True, False])
@pytest.mark.parametrize("width", [1, 4, 17])
def test_a_sparse_step_is_the_formula_on_its_rows(width, coalesced):
    weight = nn.Parameter(torch.randn(50, width))
    before, rows = weight.detach().clone(), []
    optimizer = RowWiseAdagrad([weight], **SETTINGS)
    for occurrences in (40, 0, 1, 200):
        gradient = sparse((50, width), occurrences)
        weight.grad = gradient.coalesce() if coalesced else gradient
        whole = weight.grad.to_dense().double().numpy().copy()
        touched = set(weight.grad._indices()[0].tolist())
        rows.append([whole[row] if row in touched else None for row in range(50)])
        optimizer.step()
        np.testing.assert_allclose(weight.grad.to_dense().numpy(), whole, rtol=1e-5, atol=1e-5)
    expected, sums = oracle(before, rows, **SETTINGS)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(optimizer.state[weight]["sum"][:, 0].numpy(), sums, rtol=1e-4)


def test_dense_and_sparse_gradients_of_the_same_batches_give_the_same_table():
    tables = [nn.Embedding(100, 8, sparse=flag) for flag in (False, True)]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [RowWiseAdagrad(table.parameters(), lr=0.1) for table in tables]
    for _ in range(5):
        ids, direction = torch.randint(0, 100, (64,)), torch.randn(64, 8)
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            (table(ids) * direction).sum().backward()
            optimizer.step()
    torch.testing.assert_close(tables[1].weight, tables[0].weight, rtol=1e-5, atol=1e-5)


def test_of_a_vector_it_is_torchs_adagrad():
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2))
    optimizers = RowWiseAdagrad([ours], lr=0.1, eps=1e-8), torch.optim.Adagrad([theirs], lr=0.1, eps=1e-8)
    for _ in range(5):
        gradient = torch.randn(6)
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_a_row_of_equal_gradients_takes_the_same_steps_as_in_adagrad():
    ours, theirs = (nn.Parameter(torch.zeros(3, 4)) for _ in range(2))
    optimizers = RowWiseAdagrad([ours], lr=0.1), torch.optim.Adagrad([theirs], lr=0.1, eps=1e-8)
    for _ in range(5):
        gradient = torch.randn(3, 1).expand(3, 4)
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("flag", [False, True])
def test_under_a_scaler_it_is_the_step_without_one_and_overflows_are_skipped(flag):
    tables = [nn.Embedding(20, 4, sparse=flag) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    plain, scaled = (RowWiseAdagrad(table.parameters(), lr=0.1) for table in tables)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        ids, direction = torch.randint(0, 20, (32,)), torch.randn(32, 4)
        overflow = step == 3
        scaled.zero_grad()
        loss = (tables[1](ids) * direction).sum()
        scaler.scale(loss * float("inf") if overflow else loss).backward()
        before = tables[1].weight.detach().clone()
        scaler.step(scaled)
        scaler.update()
        if overflow:
            assert torch.equal(tables[1].weight, before)
            continue
        plain.zero_grad()
        (tables[0](ids) * direction).sum().backward()
        plain.step()
    assert scaler.get_scale() == 2.0**9
    torch.testing.assert_close(tables[1].weight, tables[0].weight)
    assert torch.equal(plain.state[tables[0].weight]["sum"] > 0, scaled.state[tables[1].weight]["sum"] > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_saved_state_goes_on_to_the_bit(dtype):
    weight, bias = nn.Parameter(torch.randn(6, 4).to(dtype)), nn.Parameter(torch.randn(3).to(dtype))
    optimizer = RowWiseAdagrad([{"params": [weight]}, {"params": [bias], "lr": 0.5}], lr=0.1)

    def step(optimizer, parameters, gradients):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to(dtype)
        optimizer.step()

    step(optimizer, (weight, bias), (torch.randn(6, 4), torch.randn(3)))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = [nn.Parameter(parameter.detach().clone()) for parameter in (weight, bias)]
    again = RowWiseAdagrad([{"params": others[:1]}, {"params": others[1:]}])
    again.load_state_dict(torch.load(file, weights_only=True))
    assert [group["lr"] for group in again.param_groups] == [0.1, 0.5]
    for _ in range(2):
        gradients = torch.randn(6, 4), torch.randn(3)
        step(optimizer, (weight, bias), gradients)
        step(again, others, gradients)
    assert all(torch.equal(a, b) for a, b in zip((weight, bias), others, strict=True))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert all(state["sum"].dtype is wide for state in again.state.values())


def test_the_state_is_a_thirtieth_of_adams():
    table = nn.Embedding(1000, 16)
    table(torch.arange(1000)).sum().backward()
    optimizers = RowWiseAdagrad(table.parameters()), torch.optim.Adam(table.parameters())
    sizes = []
    for optimizer in optimizers:
        optimizer.step()
        sizes.append(sum(t.numel() for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)))
    assert sizes[0] <= sizes[1] / 30


def test_a_learning_rate_may_be_a_tensor_and_a_closure_is_called():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = RowWiseAdagrad([weight], lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)

    def closure():
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) == 4.0
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.5))


def schema():
    ids = [
        Feature(
            name=f"c{i}", kind="id", role="user", source_dtype="string", stored_dtype="int32", vocabulary_size=50
        )
        for i in range(3)
    ]  # fmt: skip
    number = Feature(name="x", kind="numeric", role="item", source_dtype="double", stored_dtype="float32")
    return FeatureSchema(features=(*ids, number))


def batches(count, rows=64):
    """Clicks that depend on the first id and on the number."""
    draw = torch.Generator().manual_seed(0)
    likes = torch.randn(50, generator=draw) * 2
    for _ in range(count):
        ids = torch.randint(0, 50, (rows, 3), generator=draw)
        dense = torch.randn(rows, 1, generator=draw)
        clicks = torch.bernoulli(torch.sigmoid(likes[ids[:, 0]] + dense[:, 0]), generator=draw)
        yield {"ids": ids, "dense": dense, "labels": clicks}


class Batches(torch.utils.data.Dataset):
    def __init__(self, count):
        self.batches = list(batches(count))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.parametrize("flag", [False, True])
def test_it_trains_in_lightning_with_a_scaler_and_our_callbacks(flag):
    pl.seed_everything(0, verbose=False)
    module = RankingModule(
        DCNv2(schema(), embedding_dim=4, hidden=(8,), sparse=flag), optimizer=partial(RowWiseAdagrad, lr=0.1)
    )
    monitor = LossScaleMonitor()
    # So large a scale overflows in the first steps, and they are skipped.
    scaler = BoundedGradScaler("cpu", init_scale=2.0**40, max_scale=2.0**40)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
        callbacks=[monitor, GradientClipping(max_norm=1.0)],
    )  # fmt: skip
    losses = [float(binary_cross_entropy_with_logits(module(b), b["labels"]).detach()) for b in batches(5)]
    loader = torch.utils.data.DataLoader(Batches(150), batch_size=None)
    trainer.fit(module, loader, torch.utils.data.DataLoader(Batches(2), batch_size=None))
    assert scaler.get_scale() < 2.0**35
    after = [float(binary_cross_entropy_with_logits(module(b), b["labels"]).detach()) for b in batches(5)]
    assert np.mean(after) < np.mean(losses) - 0.05
    table = module.network.embedding
    assert all(p.grad is None or p.grad.is_sparse == flag for p in table.parameters())


def fitted(network, make_optimizers, *, scaler=None, steps=120):
    optimizers = make_optimizers(network)
    losses = []
    for batch in batches(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=scaler is not None):
            loss = binary_cross_entropy_with_logits(network(batch), batch["labels"])
        (scaler.scale(loss) if scaler else loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        losses.append(float(loss.detach()))
    return np.mean(losses[:10]), np.mean(losses[-40:])


def adam_fused(network):
    return [torch.optim.Adam(network.parameters(), lr=0.01, fused=True)]


def sparse_adam(network):
    tables = [p for name, p in network.named_parameters() if name.startswith("embedding.")]
    rest = [p for name, p in network.named_parameters() if not name.startswith("embedding.")]
    return [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.Adam(rest, lr=0.01, fused=True)]


@pytest.mark.parametrize("with_scaler", [False, True])
@pytest.mark.parametrize(
    ("make", "flag"),
    [(adam_fused, False), (sparse_adam, True), (lambda n: [RowWiseAdagrad(n.parameters(), lr=0.1)], True)],
    ids=["Adam(fused)", "SparseAdam", "RowWiseAdagrad"],
)
def test_the_embeddings_learn_with_every_optimizer(make, flag, with_scaler):
    torch.manual_seed(0)
    network = DCNv2(schema(), embedding_dim=4, hidden=(8,), sparse=flag)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if with_scaler else None
    first, last = fitted(network, make, scaler=scaler)
    assert last < first - 0.05


def test_copies_and_mistakes():
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = RowWiseAdagrad([weight])
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(copy.deepcopy(optimizer).param_groups[0]["params"][0], weight)
    whole = nn.Parameter(torch.ones(2, 2))
    whole.grad = torch.ones(2, 2).to_sparse()
    unreal = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    unreal.grad = torch.ones(2, dtype=torch.complex64)
    for call, problem in (
        (lambda: RowWiseAdagrad([weight], lr=-1.0), "`lr` must be 0 or more, got -1.0"),
        (lambda: RowWiseAdagrad([weight], eps=0.0), "`eps` must be above 0, got 0.0"),
        (lambda: RowWiseAdagrad([weight], weight_decay=float("nan")), "`weight_decay` must be 0 or more, got nan"),
        (lambda: RowWiseAdagrad([weight], initial_accumulator_value=-0.1), "`initial_accumulator_value` must be 0"),
        (RowWiseAdagrad([whole]).step, "a gradient is sparse in 2 dimensions, not in its rows alone"),
        (RowWiseAdagrad([unreal]).step, "a parameter is complex"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            call()


@pytest.mark.gpu
@pytest.mark.parametrize("flag", [False, True])
def test_on_a_gpu_it_takes_the_same_steps(flag):
    tables = [nn.Embedding(100, 8, sparse=flag, device=device) for device in ("cpu", "cuda")]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [RowWiseAdagrad(table.parameters(), lr=0.1, weight_decay=0.01) for table in tables]
    for _ in range(5):
        ids, direction = torch.randint(0, 100, (64,)), torch.randn(64, 8)
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            (table(ids.to(table.weight.device)) * direction.to(table.weight.device)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(tables[1].weight.cpu(), tables[0].weight, rtol=1e-4, atol=1e-4)


def test_parameters_of_several_shapes_and_formats_take_the_steps_they_take_alone():
    values = [torch.randn(4, 3), torch.randn(7), torch.randn(2, 5, 3), torch.randn(()), torch.randn(4, 3).half()]
    values += [torch.randn(6, 2).double(), torch.randn(0, 4)]
    together, alone = ([nn.Parameter(value.clone()) for value in values] for _ in range(2))
    optimizers = [
        RowWiseAdagrad(together, lr=0.1, weight_decay=0.1),
        *(RowWiseAdagrad([p], lr=0.1, weight_decay=0.1) for p in alone),
    ]
    for _ in range(3):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


@pytest.mark.parametrize("shape", [(9,), (9, 2, 3)])
def test_a_sparse_gradient_may_be_of_a_vector_or_of_more_than_two_dimensions(shape):
    weights = [nn.Parameter(torch.ones(shape)) for _ in range(2)]
    optimizers = [RowWiseAdagrad([weight], lr=0.1) for weight in weights]
    for _ in range(3):
        rows = torch.randint(0, 9, (1, 5))
        gradient = torch.sparse_coo_tensor(rows, torch.randn(5, *shape[1:]), shape, check_invariants=True)
        weights[0].grad, weights[1].grad = gradient, gradient.to_dense()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(weights[0], weights[1])
