from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from lightning_mp.precision.float32_layers import Float32Layers
from lightning_mp.precision.layer_ranges import LayerRanges
from lightning_mp.precision.layers_near_overflow import layers_near_overflow

LIMIT = 65504.0 / 8


def judge(net: nn.Module, *inputs: torch.Tensor, kept: tuple[str, ...] = ()):
    ranges = LayerRanges(net, kept=kept)
    with torch.autocast("cpu", dtype=torch.float16):
        net(*inputs)
    ranges.detach()
    called = {name: module for name, module in net.named_modules() if name in ranges.ran}
    return layers_near_overflow(ranges.read(), called, LIMIT, kept)


def scaled(width: int, gain: float) -> nn.Linear:
    """A layer whose outputs are about `gain` times as large as its inputs."""
    layer = nn.Linear(width, width)
    nn.init.orthogonal_(layer.weight, gain)
    return layer


def drawn() -> tuple[nn.Sequential, torch.Tensor, list[float]]:
    """Eight layers, their input, and the largest magnitude at each in float64; none at the limit or beyond the end."""
    while True:
        net = nn.Sequential(*(scaled(6, float(gain)) for gain in 10 ** (torch.rand(8) * 4 - 2)))
        x = torch.randn(32, 6)
        values = [x.double()]
        for layer in net:
            values.append(values[-1] @ layer.weight.detach().double().T + layer.bias.detach().double())
        sizes = [float(torch.stack(pair).abs().max()) for pair in itertools.pairwise(values)]
        if max(sizes) < 60_000 and not any(0.95 < size / LIMIT < 1.05 for size in sizes):
            return net, x, sizes


@pytest.mark.parametrize("_", range(5))
def test_the_layers_named_are_those_beyond_the_limit_in_float64(_):
    net, x, sizes = drawn()
    found = judge(net, x)
    assert set(found.layers) == {str(number) for number, size in enumerate(sizes) if size > LIMIT}
    assert not found.outside


@pytest.mark.parametrize("where", range(4))
def test_an_overflow_names_the_layer_where_it_began_and_the_next(where):
    net = nn.Sequential(*(scaled(6, 1e6 if number == where else 1.0) for number in range(5)))
    found = judge(net, torch.randn(32, 6))
    assert set(found.layers) == {str(where), str(where + 1)}
    assert all(math.isinf(size) for size in found.layers.values())


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_batch_that_is_not_finite_blames_nobody(bad):
    x = torch.randn(8, 6)
    x[3, 2] = bad
    assert judge(nn.Sequential(scaled(6, 1.0), nn.ReLU(), scaled(6, 1.0)), x).layers == {}


def test_what_only_follows_its_input_is_left_alone():
    net = nn.Sequential(scaled(6, 1e4), nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU())
    assert set(judge(net, torch.randn(64, 6)).layers) == {"0"}


class Attention(nn.Module):
    """Scores, a mask, and a softmax that is a module, as one finds it."""

    def __init__(self, fill: float, *, gain: float = 1.0) -> None:
        super().__init__()
        self.first, self.query, self.key, self.last = (scaled(6, g) for g in (1.0, gain, 1.0, 1.0))
        self.fill, self.softmax = fill, nn.Softmax(-1)

    def forward(self, x):
        x = self.first(x)
        scores = self.query(x) @ self.key(x).T
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        fill = self.fill if math.isinf(self.fill) else max(self.fill, torch.finfo(scores.dtype).min)
        return self.last(self.softmax(scores.masked_fill(later, fill)) @ x)


@pytest.mark.parametrize("fill", [-math.inf, -3e38, -1e9, -1e4])
def test_a_mask_is_no_magnitude(fill):
    assert judge(Attention(fill), torch.randn(9, 6)).layers == {}
    layers = judge(Attention(fill, gain=1e4), torch.randn(9, 6) + 5).layers  # scores that do overflow
    assert "query" in layers


@pytest.mark.parametrize("fill", [-math.inf, -3e38, -1e9, -1e4])
def test_a_mask_that_is_handed_over_is_no_magnitude(fill):
    mask = torch.full((4, 4), fill).triu(1)
    first = scaled(8, 1.0)
    net = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    attention = net.self_attn

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.net = first, net

        def forward(self, x):
            return self.net(self.first(x), src_mask=mask)

    assert judge(Masked(), torch.randn(5, 4, 8)).layers == {}
    attention.out_proj.weight.data.mul_(1e8)
    assert "net.self_attn" in judge(Masked(), torch.randn(5, 4, 8)).layers


def test_the_layer_before_one_that_makes_large_numbers_of_small_ones_is_left_alone():
    class Function(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = scaled(6, 1.0), scaled(6, 9000.0)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    assert set(judge(Function(), torch.randn(64, 6).clamp(-3, 3)).layers) == {"second"}


def test_a_loss_that_is_large_in_float32_is_no_layer():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.loss = scaled(6, 1.0), nn.MSELoss()

        def forward(self, x):
            return self.loss(self.layer(x), torch.full((8, 6), 1e4))

    assert judge(WithLoss(), torch.randn(8, 6)).layers == {}


def test_a_layer_that_stands_in_float32_already_is_left_alone():
    class Float32(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = scaled(6, 1e6)

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return self.layer(x.float())

    assert judge(nn.Sequential(scaled(6, 1.0), Float32(), nn.LayerNorm(6)), torch.randn(64, 6)).layers == {}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_codes_of_8_bits_go_through(dtype):
    class Codes(nn.Module):
        def forward(self, x):
            return x.to(dtype)

    assert judge(nn.Sequential(scaled(6, 9000.0), Codes()), torch.randn(64, 6)).layers.keys() == {"0"}


class Bottom(nn.Module):
    """The input is brought to 16 bits by a layer, so that what follows is computed in them."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.top = scaled(6, 300.0), nn.Linear(6, 1)


class Inline(Bottom):
    """The product stands between the layers: neither makes anything large."""

    def __init__(self) -> None:
        super().__init__()
        self.left = scaled(6, 1.0)

    def forward(self, x):
        x0 = self.bottom(x)
        return self.top(x0 * self.left(x0))


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = scaled(6, 1.0)

    def forward(self, x0, x):
        return x0 * self.linear(x) + x


class Parent(Bottom):
    def __init__(self) -> None:
        super().__init__()
        self.cross = Cross()

    def forward(self, x):
        x0 = self.bottom(x)
        return self.top(self.cross(x0, x0))


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.eye(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x0, x):
        return x0 * (x @ self.w) + self.b + x


class OwnParameters(Parent):
    def __init__(self) -> None:
        super().__init__()
        self.cross = Owner()


class Product(nn.Module):
    def forward(self, a, b):
        return a * b


class OwnProduct(Inline):
    def __init__(self) -> None:
        super().__init__()
        self.product = Product()

    def forward(self, x):
        x0 = self.bottom(x)
        return self.top(self.product(x0, self.left(x0)))


class Relu(Inline):
    """What stands before the product is a ReLU, which itself makes nothing large."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        x0 = self.relu(self.bottom(x))
        return self.top(x0 * self.relu(self.left(x0)))


class Again(Bottom):
    """One layer twice: its first output overflows, and is its second input."""

    def __init__(self) -> None:
        super().__init__()
        self.again = scaled(6, 1e3)

    def forward(self, x):
        return self.top(self.again(self.again(self.bottom(x))))


def test_a_layer_that_runs_again_on_what_it_made_infinite_is_blamed():
    x = torch.randn(64, 6)
    assert {"again"} <= set(judge(Again(), x).layers) <= {"again", "top"}


@pytest.mark.parametrize(
    ("kind", "layer"),
    [(Relu, "relu"), (Inline, "left"), (Parent, "cross.linear"), (OwnParameters, "cross"), (OwnProduct, "product")],
)
def test_where_a_product_is_too_large_keeping_what_is_named_cures_it(kind, layer):
    net, x = kind(), torch.randn(64, 6)
    with torch.no_grad():
        truth = net.double()(x.double())
    net.float()
    with torch.autocast("cpu", dtype=torch.float16):
        assert not net(x).isfinite().all()
    found = judge(net, x)
    assert layer in found.layers
    assert "top" in found.layers
    modules = dict(net.named_modules())
    kept = Float32Layers({name: modules[name] for name in found.layers})
    with torch.autocast("cpu", dtype=torch.float16):
        scores = net(x)
    torch.testing.assert_close(scores.double(), truth, rtol=0.02, atol=0.02 * float(truth.abs().max()))
    assert set(judge(net, x, kept=tuple(found.layers)).layers) == set()
    kept.release()


class Pairs(Bottom):
    """A product of matrices between the layers: autocast does it in float16 whatever it is given."""

    def forward(self, x):
        x0 = self.bottom(x)
        return self.top(x0 @ (x0.T @ x0))


def test_a_product_of_matrices_needs_the_module_around_it():
    inner, x = Pairs(), torch.randn(64, 6)
    net = nn.Sequential(inner)
    assert set(judge(net, x).layers) == {"0.bottom", "0.top"}
    kept = Float32Layers({"bottom": inner.bottom, "top": inner.top})
    found = judge(net, x, kept=("0.bottom", "0.top"))
    assert (set(found.layers), set(found.outside)) == ({"0"}, set())
    alone = judge(inner, x, kept=("bottom", "top"))
    assert (set(alone.layers), set(alone.outside)) == (set(), {"top"})
    kept.release()


class Uncalled(nn.Module):
    """What holds the layers is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Pairs()

    def forward(self, x):
        x0 = self.net.bottom(x)
        return self.net.top(x0 @ (x0.T @ x0))


def test_a_module_that_is_never_called_is_not_named():
    net, x = Uncalled(), torch.randn(64, 6)
    kept = Float32Layers({"bottom": net.net.bottom, "top": net.net.top})
    found = judge(net, x, kept=("net.bottom", "net.top"))
    assert (set(found.layers), set(found.outside)) == (set(), {"net.top"})
    kept.release()
