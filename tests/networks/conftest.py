"""A schema with every kind of input, batches of it, and what all networks are held to."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn

from lightning_mp.export.core_graph import write_core
from lightning_mp.float_formats import BFLOAT16, FLOAT16
from lightning_mp.schema import Feature, FeatureSchema

FORMATS = ((torch.float16, FLOAT16), (torch.bfloat16, BFLOAT16))


def indexed(name, kind, role, size, width=1):
    return Feature(
        name=name, kind=kind, role=role, source_dtype="string", stored_dtype="int32", vocabulary_size=size, width=width
    )


def number(name, role, kind="numeric", width=1):
    return Feature(name=name, kind=kind, role=role, source_dtype="double", stored_dtype="float16", width=width)


class Mixed:
    """Two users' features, two items', one of the context; a list, a vector and two numbers."""

    schema = FeatureSchema(
        features=(
            indexed("user", "id", "user", 50),
            number("age", "user"),
            indexed("tags", "multi_categorical", "item", 9, width=4),
            indexed("item", "id", "item", 300),
            indexed("hour", "categorical", "context", 25),
            number("picture", "item", kind="vector", width=3),
            indexed("brand", "categorical", "item", 3),
            number("price", "item"),
        )
    )
    sizes = (50, 300, 25, 3)

    def batch(self, rows=101, *, scale=1.0, dtype=torch.int64):
        tags = torch.randint(0, 9, (rows, 1, 4)) * (torch.rand(rows, 1, 4) < 0.7)
        return {
            "ids": torch.stack([torch.randint(0, size, (rows,)) for size in self.sizes], dim=1).to(dtype),
            "multi": tags.to(dtype),
            "dense": torch.randn(rows, 5) * scale,
        }

    @staticmethod
    def trained_like(network):
        """Embeddings of unit variance, as training makes them: freshly drawn ones would hide half the network."""
        with torch.no_grad():
            for part in network.modules():
                if isinstance(part, nn.Embedding):
                    part.weight.normal_()
        return network

    @staticmethod
    def weights(network):
        return {name: value.double().numpy() for name, value in network.state_dict().items()}

    @staticmethod
    def joined(weights, inputs, row, *, prefix="embedding.", ids=(0, 1, 2, 3), lists=True, dense=range(5)):
        """Embeddings and numbers of one row side by side, from the weights alone, float64."""
        parts = [weights[f"{prefix}tables.{n}.weight"][inputs["ids"][row, i]] for n, i in enumerate(ids)]
        if lists:
            table = weights[f"{prefix}tables.{len(parts)}.weight"]
            known = [int(i) for i in inputs["multi"][row, 0] if i != 0]
            parts.append(np.mean([table[i] for i in known], axis=0) if known else np.zeros(table.shape[1]))
        return np.concatenate([*parts, inputs["dense"][row, list(dense)].double().numpy()])

    @staticmethod
    def mlp(weights, prefix, x):
        layer = 0
        while f"{prefix}layers.{layer}.weight" in weights:
            x = np.maximum(linear(weights, f"{prefix}layers.{layer}", x), 0)
            layer += 1
        return x

    @staticmethod
    def linear(weights, name, x):
        return linear(weights, name, x)


def linear(weights, name, x):
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


class Held:
    """What every network must do, whatever it computes."""

    @staticmethod
    def to_float64(network, batch):
        wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
        return copy.deepcopy(network).double()(wide)

    def to_half_precision(self, network, batch, *, units, scale=None):
        """Autocast and weights in half precision stay within `units` relative steps of float64."""
        exact = self.to_float64(network, batch).detach()
        size = float(exact.square().mean().sqrt() + 1) if scale is None else scale
        for dtype, form in FORMATS:
            with torch.autocast("cpu", dtype=dtype):
                logits = network(batch).detach()
            assert logits.dtype == torch.float32
            assert float((logits - exact).abs().max()) <= units * form.relative_step * size, dtype
            halves = copy.deepcopy(network).to(dtype)(batch).detach()
            assert halves.dtype == torch.float32
            assert float((halves - exact).abs().max()) <= 4 * units * form.relative_step * size, dtype

    def to_any_scale(self, network, make_batch):
        for scale in (1e-3, 1.0, 1e3):
            for dtype, _ in FORMATS:
                with torch.autocast("cpu", dtype=dtype):
                    logits = network(make_batch(scale))
                assert logits.isfinite().all(), (scale, dtype)
                logits.square().mean().backward()
                assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters()), (scale, dtype)
                network.zero_grad()

    def to_finite_differences(self, network, batch):
        network = copy.deepcopy(network).double()
        wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()}
        names = list(dict(network.named_parameters()))

        def logits(*parameters):
            return torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), (wide,))

        assert torch.autograd.gradcheck(logits, tuple(network.parameters()))

    def to_any_batch(self, network, make_batch, shape=()):
        """One row, none, and the same rows alone as among others."""
        network = network.eval()
        batch = make_batch(6)
        together = network(batch)
        for row in range(6):
            alone = network({name: tensor[row : row + 1] for name, tensor in batch.items()})
            torch.testing.assert_close(alone, together[row : row + 1])
        assert network({name: tensor[:0] for name, tensor in batch.items()}).shape == (0, *shape)
        assert network.train()(make_batch(1)).shape == (1, *shape)

    def to_export(self, network, make_batch, folder):
        """Exported once by the package's exporter, right at any batch size."""
        import onnxruntime

        network = network.eval()
        write_core(network, {}, make_batch(5), folder / "model.onnx")
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        for rows in (1, 2, 64):
            batch = make_batch(rows)
            logits, _ = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
            expected = network(batch).detach().numpy()
            np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max()))

    @staticmethod
    def to_errors(broken: Mapping[str, object], kind):
        for problem, call in broken.items():
            with pytest.raises(kind, match=problem):
                call()


@pytest.fixture(scope="session")
def mixed():
    return Mixed()


@pytest.fixture(scope="session")
def held():
    return Held()
