from __future__ import annotations

import copy
import io
import itertools
import logging

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import KeepInFP32
from lightning_mp.errors import ConfigurationError, LightningMPWarning

ROWS = 32
# torch.compile asks for it itself, at every break of the graph.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """The top is registered first; its inputs are dot products, so no module feeds it directly."""

    def __init__(self) -> None:
        super().__init__()
        self.top = mlp(11, 8, 1)
        self.embedding = nn.Embedding(20, 8)
        self.bot = mlp(6, 8, 8)

    def forward(self, ids, dense):
        bottom = self.bot(dense)
        all_ = torch.cat([bottom[:, None], self.embedding(ids)], 1)
        pairs = (all_ @ all_.transpose(1, 2))[:, [0, 0, 1], [1, 2, 2]]
        return self.top(torch.cat([bottom, pairs.to(bottom.dtype)], 1)).squeeze(1)


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item, self.user = mlp(8, 8, 8), mlp(14, 8, 8)
        self.embedding = nn.Embedding(20, 8)

    def forward(self, ids, dense):
        embedded = self.embedding(ids)
        return (self.user(torch.cat([embedded[:, 0], dense], 1)) * self.item(embedded[:, 1])).sum(1)


class MMoE(nn.Module):
    """Heads are registered first, the gates and the experts read the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(mlp(8, 8, 1) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(22, 3) for _ in range(2))
        self.experts = nn.ModuleList(mlp(22, 8, 8) for _ in range(3))
        self.embedding = nn.Embedding(20, 8)

    def forward(self, ids, dense):
        x = torch.cat([self.embedding(ids).flatten(1), dense], 1)
        experts = torch.stack([expert(x) for expert in self.experts], 1)
        mixed = [(gate(x).softmax(1)[..., None] * experts).sum(1) for gate in self.gates]
        return sum(head(mix) for head, mix in zip(self.heads, mixed, strict=True)).squeeze(1)


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = mlp(16, 8, 8, 1)
        self.wide = nn.Linear(6, 1)
        self.embedding = nn.Embedding(20, 8)

    def forward(self, ids, dense):
        return (self.wide(dense) + self.deep(self.embedding(ids).flatten(1))).squeeze(1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.project = nn.Linear(6, 8)
        self.embedding = nn.Embedding(20, 8)

    def forward(self, ids, dense):
        x = torch.cat([self.project(dense)[:, None], self.embedding(ids)], 1)
        return self.head(self.encoder(x).mean(1)).squeeze(1)


# Written down by reading the forward passes above.
SHAPES = {
    "dlrm": (DLRM, {"bot.0", "top.2"}),
    "two_tower": (TwoTower, {"user.0", "item.0", "user.2", "item.2"}),
    "mmoe": (
        MMoE,
        {f"experts.{i}.0" for i in range(3)} | {f"gates.{i}" for i in range(2)} | {f"heads.{i}.2" for i in range(2)},
    ),
    "wide_and_deep": (WideAndDeep, {"wide", "deep.0", "deep.4"}),
    "transformer": (Transformer, {"project", "head"}),
}


class Ranker(pl.LightningModule):
    """Keeps, of each training batch, the gradients of all weights of two dimensions."""

    def __init__(self, net: nn.Module, *, example: bool = False) -> None:
        super().__init__()
        self.net = net
        self.run = net
        self.gradients: list[dict[str, torch.Tensor]] = []
        if example:
            self.example_input_array = (torch.randint(20, (8, 2)), torch.randn(8, 6))

    def forward(self, ids, dense):
        return self.run(ids, dense)

    def training_step(self, batch, batch_idx):
        ids, dense, labels = batch
        return nn.functional.binary_cross_entropy_with_logits(self(ids, dense).float(), labels)

    def predict_step(self, batch, batch_idx):
        return self(batch[0], batch[1])

    def on_after_backward(self):
        self.gradients.append(
            {
                name.removeprefix("net.").replace("_orig_mod.", "").rpartition(".")[0]: p.grad.clone()
                for name, p in self.named_parameters()
                if p.dim() == 2 and name.endswith("weight") and "embedding" not in name
            }
        )

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


class Evaluated(Ranker):
    validation_step = test_step = Ranker.training_step


def loader(batches: int = 3) -> DataLoader:
    n = ROWS * batches
    data = TensorDataset(torch.randint(20, (n, 2)), torch.randn(n, 6), torch.rand(n).round())
    return DataLoader(data, batch_size=ROWS)


def short_layers(gradients: dict[str, torch.Tensor], dtype: torch.dtype = torch.float16) -> set[str]:
    """Layers whose weight gradient is exactly one of a shorter format: an own reading of the rule, per element."""
    return {
        name
        for name, gradient in gradients.items()
        if gradient.count_nonzero() and all(float(torch.tensor(v).to(dtype)) == v for v in gradient.flatten().tolist())
    }


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "aot_eager"])
@pytest.mark.parametrize("shape", SHAPES)
def test_auto_finds_the_layers_and_their_gradients_are_float32(make_trainer, shape, compiled):
    kind, edges = SHAPES[shape]
    module = Ranker(kind())
    if compiled:
        module.run = torch.compile(module.net, backend="aot_eager")
    keep = KeepInFP32()
    make_trainer(callbacks=[keep]).fit(module, loader())
    assert {name.removeprefix("net.") for name in keep.layers} == edges
    assert keep.verified == dict.fromkeys(keep.layers, True)
    layers = set(module.gradients[0])
    assert edges <= layers
    first, second, third = (short_layers(gradients) for gradients in module.gradients)
    assert edges <= first  # the first batch is watched
    assert not edges & (second | third)
    assert (second | third) >= layers - edges - {"encoder.self_attn.out_proj"} or shape == "transformer"


@pytest.mark.parametrize("shape", SHAPES)
def test_an_example_input_lets_auto_begin_with_the_first_batch(make_trainer, shape):
    kind, edges = SHAPES[shape]
    module = Ranker(kind(), example=True)
    random_state = torch.get_rng_state()
    keep = KeepInFP32()
    make_trainer(callbacks=[keep]).fit(module, batches := loader(2))
    assert {name.removeprefix("net.") for name in keep.layers} == edges
    assert not edges & short_layers(module.gradients[0])
    del batches, random_state


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # torch imports its own
def test_gradients_are_float32_with_inductor(make_trainer):
    module = Ranker(WideAndDeep(), example=True)
    module.run = torch.compile(module.net, options={"compile_threads": 1})
    keep = KeepInFP32()
    make_trainer(callbacks=[keep]).fit(module, loader(2))
    assert keep.verified == dict.fromkeys(keep.layers, True)
    assert not SHAPES["wide_and_deep"][1] & short_layers(module.gradients[0])


def test_a_whole_module_compiled_for_the_trainer_is_kept_too(make_trainer):
    module = Ranker(DLRM(), example=True)
    keep = KeepInFP32()
    make_trainer(callbacks=[keep]).fit(torch.compile(module, backend="aot_eager"), loader(2))
    assert keep.verified == {"net.bot.0": True, "net.top.2": True}
    assert not {"bot.0", "top.2"} & short_layers(module.gradients[0])


def test_gradients_are_those_of_a_float32_run_where_float16_would_lose_them(make_trainer):
    """A tiny loss: in float16 the output layer's gradient flushes to zero, kept in float32 it is right."""

    class Tiny(Ranker):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * 2.0**-20

    batches = loader(1)
    wanted = Tiny(net := WideAndDeep())
    make_trainer(precision="32-true").fit(wanted, batches)
    errors = {}
    for callbacks in ([], [KeepInFP32(["net.wide", "net.deep.4"])]):
        module = Tiny(copy.deepcopy(net))
        module.net.load_state_dict(net.state_dict())
        make_trainer(callbacks=callbacks, scale=1.0).fit(module, batches)
        truth = wanted.gradients[0]["wide"]
        errors[len(callbacks)] = float((module.gradients[0]["wide"] - truth).norm() / truth.norm())
    assert errors[1] < 1e-2 < errors[0]


def test_bfloat16_is_verified_too(make_trainer):
    module = Ranker(TwoTower(), example=True)
    keep = KeepInFP32()
    make_trainer(callbacks=[keep], precision="bf16-mixed").fit(module, loader(2))
    assert keep.verified == dict.fromkeys(keep.layers, True)
    short = short_layers(module.gradients[0], torch.bfloat16)
    assert short == set()  # both layers of both towers are at an edge


def test_names_and_patterns_take_the_outermost_match(make_trainer):
    module = Ranker(DLRM())
    keep = KeepInFP32(["net.top", "net.b*.2"])
    make_trainer(callbacks=[keep]).fit(module, loader(1))
    assert keep.layers == ("net.top", "net.bot.2")
    assert short_layers(module.gradients[0]) == {"bot.0"}


def test_a_name_that_matches_nothing_offers_the_nearest(make_trainer):
    with pytest.raises(ConfigurationError, match=r"no module of `Ranker` matches `net.tip.2`") as error:
        make_trainer(callbacks=[KeepInFP32(["net.tip.2"])]).fit(Ranker(DLRM()), loader(1))
    assert "did you mean `net.top.2`?" in str(error.value)


def test_empty_modules_and_short_weights_are_refused(make_trainer):
    with pytest.raises(ConfigurationError, match=r"`modules` names no layer, got \[\]"):
        KeepInFP32([])
    with pytest.raises(ConfigurationError, match="keeps nothing in precision `bf16-true`"):
        make_trainer(callbacks=[KeepInFP32()], precision="bf16-true").fit(Ranker(DLRM()), loader(1))


def test_without_autocast_it_says_once_that_nothing_is_done(make_trainer, caplog):
    keep = KeepInFP32()
    with caplog.at_level(logging.INFO):
        make_trainer(callbacks=[keep], precision="32-true", max_epochs=2).fit(Evaluated(DLRM()), loader(1), loader(1))
    assert sum("nothing to do: precision `32-true` casts no layer" in text for text in caplog.messages) == 1
    assert keep.layers == ()


def test_it_is_undone_at_the_end_and_after_an_exception(make_trainer):
    class Breaks(Ranker):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            assert isinstance(self.net.top[2], nn.Linear)
            assert type(self.net.top[2]) is not nn.Linear
            if batch_idx == 1:
                raise KeyError("planted")

    for kind, error in ((Ranker, None), (Breaks, KeyError)):
        module = kind(DLRM())
        keys = list(module.state_dict())
        trainer = make_trainer(callbacks=[KeepInFP32()])
        if error is None:
            trainer.fit(module, loader())
        else:
            with pytest.raises(error, match="planted"):
                trainer.fit(module, loader())
        assert all(
            type(inner) in {DLRM, nn.Sequential, nn.Linear, nn.GELU, nn.Embedding} for inner in module.net.modules()
        )
        assert list(module.state_dict()) == keys
        assert not any(inner._forward_hooks for inner in module.modules())
        assert not any(p._backward_hooks for p in module.parameters())


def test_copies_and_pickles_made_during_a_fit_are_their_own(make_trainer):
    class Copies(Ranker):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 2:
                self.copies.append(copy.deepcopy(self.net))
                torch.save(self.net, self.file)

    module = Copies(DLRM(), example=True)
    module.file, module.copies = io.BytesIO(), []
    make_trainer(callbacks=[KeepInFP32()]).fit(module, loader(4))
    module.file.seek(0)
    for other in (module.copies[0], torch.load(module.file, weights_only=False)):
        assert type(other.top[2]) is nn.Linear
        ids, dense = torch.randint(20, (4, 2)), torch.randn(4, 6)
        before = other(ids, dense)
        with torch.no_grad():
            module.net.top[2].weight.add_(1.0)  # the copy must not look at the original's weights
        assert torch.equal(other(ids, dense), before)


def test_a_weight_used_outside_its_layer_is_reported(make_trainer):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(20, 8), nn.Linear(22, 8)

        def forward(self, ids, dense):
            h = self.hidden(torch.cat([self.embedding(ids).flatten(1), dense], 1))
            return nn.functional.linear(h, self.embedding.weight)[:, 0]

    keep = KeepInFP32(["net.embedding", "net.hidden"])
    with pytest.warns(LightningMPWarning, match=r"`net.embedding.weight` is used outside of `net.embedding` too"):
        make_trainer(callbacks=[keep]).fit(Ranker(Tied()), loader(1))


def test_tied_layers_stay_tied(make_trainer):
    net = WideAndDeep()
    net.deep[2].weight = net.deep[2].weight
    net.deep = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 1))
    net.deep[4].weight = net.deep[2].weight
    module = Ranker(net)
    make_trainer(callbacks=[KeepInFP32(["net.deep.2", "net.deep.4"])]).fit(module, loader(2))
    assert net.deep[4].weight is net.deep[2].weight
    assert "deep.2" not in short_layers(module.gradients[-1])


def test_a_layer_that_is_not_kept_is_told_by_its_gradients(make_trainer):
    """What the check is for: here the layer is compiled together with a backward pass in float16."""

    class Sabotaged(Ranker):
        def on_train_batch_start(self, batch, batch_idx):
            inner = self.net.top[2]
            kept = type(inner)
            inner.__class__ = type("Plain", (kept,), {"forward": nn.Linear.forward})

    keep = KeepInFP32(["net.top.2"])
    module = Sabotaged(DLRM())
    with pytest.warns(LightningMPWarning) as caught:
        make_trainer(callbacks=[keep]).fit(module, loader(1))
    texts = [str(warning.message) for warning in caught if warning.category is LightningMPWarning]
    assert any("the gradients of `net.top.2` came out of a shorter format" in text for text in texts)
    assert keep.verified == {"net.top.2": False}


def test_layers_found_by_a_training_are_kept_in_an_evaluation_from_its_checkpoint(make_trainer, caplog):
    batches = loader(2)
    first = KeepInFP32()
    trainer = make_trainer(callbacks=[first])
    module = Ranker(WideAndDeep())
    trainer.fit(module, batches)
    trainer.save_checkpoint("run.ckpt")
    for run in ("validate", "test", "predict"):
        seen: list[torch.dtype] = []

        class Watch(pl.Callback):
            def setup(self, trainer, pl_module, stage):
                pl_module.net.wide.register_forward_hook(lambda m, i, o: seen.append(o.dtype))  # noqa: B023 (called in this turn)

        again = KeepInFP32()
        evaluation = make_trainer(callbacks=[again, Watch()])
        getattr(evaluation, run)(Evaluated(WideAndDeep()), batches, ckpt_path="run.ckpt", weights_only=True)
        assert again.layers == first.layers
        assert set(seen) == {torch.float32}
    with caplog.at_level(logging.INFO):
        make_trainer(callbacks=[KeepInFP32()]).validate(Evaluated(WideAndDeep()), batches)
    assert "keeps no layer in this evaluation: none was found by a training before" in caplog.text


def test_manual_optimization_with_two_losses(make_trainer):
    class Two(Ranker):
        def __init__(self):
            super().__init__(TwoTower())
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            ids, dense, labels = batch
            for optimizer, sign in zip(self.optimizers(), (1.0, 2.0), strict=True):
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(self(ids, dense).float(), labels) * sign
                self.manual_backward(loss)
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(self.net.user.parameters(), 0.1), torch.optim.SGD(self.net.item.parameters(), 0.1)]

    keep = KeepInFP32()
    make_trainer(callbacks=[keep]).fit(Two(), loader(2))
    assert {name.removeprefix("net.") for name in keep.layers} == SHAPES["two_tower"][1]
    assert all(keep.verified.values())


@pytest.mark.parametrize("dynamo", [True, False])
def test_export_while_kept_gives_the_same_operators(dynamo):
    from lightning_mp.precision.float32_layers import Float32Layers

    onnx = pytest.importorskip("onnx")

    def operators(net):
        file = io.BytesIO()
        inputs = (torch.randint(20, (4, 2)), torch.randn(4, 6))
        if dynamo:
            torch.onnx.export(net, inputs, dynamo=True, verbose=False).save(file)
        else:
            torch.onnx.export(net, inputs, file, dynamo=False)
        return [node.op_type for node in onnx.load_from_string(file.getvalue()).graph.node]

    net = WideAndDeep().eval()
    with pytest.warns() if not dynamo else _nothing():
        plain = operators(net)
        kept = Float32Layers({"wide": net.wide, "deep.4": net.deep[4]})
        assert operators(net) == plain
    kept.release()


def _nothing():
    from contextlib import nullcontext

    return nullcontext()
