from __future__ import annotations

import threading

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from lightning_mp.export.inference_copy import inference_copy


class Unexportable:
    """What a monitor's hook may hold: it can neither be copied nor saved."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[torch.Tensor] = []

    def watch(self, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        self.seen.append(output.detach())


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def test_hooks_of_every_kind_stay_behind_with_what_they_hold():
    monitor, module = Unexportable(), network()
    module[0].register_forward_hook(monitor.watch)
    module[0].register_forward_hook(lambda *_, **__: None, with_kwargs=True, always_call=True)
    module[1].register_forward_pre_hook(lambda m, x: monitor.lock and None)
    module[3].register_full_backward_hook(lambda *_: monitor.lock and None)
    module.register_state_dict_post_hook(lambda *_: monitor.lock and None)
    copied = inference_copy(module)
    copied(torch.randn(2, 3))
    assert monitor.seen == []
    assert not any(value for part in copied.modules() for name, value in vars(part).items() if "hooks" in name)
    module.eval()(torch.randn(2, 3))
    assert len(monitor.seen) == 1  # the original keeps its own


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_it_computes_in_float32_and_leaves_the_original_alone(dtype):
    module = network().to(dtype).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    copied = inference_copy(module)
    copied(torch.randn(5, 3))
    assert {p.dtype for p in copied.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in copied.parameters())
    assert not copied.training
    assert module.training
    assert all(p.requires_grad and p.dtype == dtype for p in module.parameters())
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    with torch.no_grad():
        copied[0].weight.zero_()
    assert module[0].weight.abs().sum() > 0


def test_compiled_modules_come_out_plain_wherever_they_stand():
    inner = torch.compile(network(), backend="eager")
    module = nn.ModuleDict({"part": inner, "other": network()})
    module["other"].compile(backend="eager")
    for compiled in (inner, torch.compile(module, backend="eager")):
        copied = inference_copy(compiled)
        assert not any(hasattr(part, "_orig_mod") for part in copied.modules())
        assert all(getattr(part, "_compiled_call_impl", None) is None for part in copied.modules())
        assert not any("_orig_mod" in name for name in copied.state_dict())
    x = torch.randn(4, 3)
    expected = inner.eval()(x)
    torch.testing.assert_close(inference_copy(inner)(x), expected)
    assert hasattr(module["part"], "_orig_mod")  # the original stays compiled


def test_a_lightning_module_comes_without_its_trainer():
    class Tiny(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()

    module = Tiny()
    module.trainer = pl.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    assert inference_copy(module)._trainer is None
    assert module._trainer is not None


def test_shared_weights_stay_shared():
    table = nn.Embedding(5, 3)
    module = nn.ModuleList([table, nn.Linear(3, 5, bias=False), table])
    module[1].weight = table.weight
    copied = inference_copy(module)
    assert copied[0] is copied[2]
    assert copied[0].weight is copied[1].weight
