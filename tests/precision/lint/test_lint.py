from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap

import lightning.pytorch.demos.boring_classes as boring
import lightning.pytorch.demos.lstm as lstm
import lightning.pytorch.demos.transformer as transformer
import pytest
import torch
from torch import nn
from torchmetrics import MeanSquaredError

import lightning_mp.models
import lightning_mp.networks
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad
from lightning_mp.precision.lint.finding import LINT_CODES, LintFinding
from lightning_mp.precision.lint.lint import lint
from lightning_mp.precision.lint.module_rules import findings_in_optimizers


@pytest.fixture
def codes(tmp_path, monkeypatch):
    """Codes, and lines within `forward`, that the lint finds in the statements of a forward pass."""
    monkeypatch.syspath_prepend(tmp_path)
    count = iter(range(1000))

    def find(statements: str, *, before: str = "", **settings: str) -> list[tuple[str, int]]:
        name = f"linted_{tmp_path.name}_{next(count)}".replace("-", "_")
        head = f"import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n{before}\n"
        head += "class Net(nn.Module):\n    def forward(self, x, mask, y):\n"
        body = textwrap.indent(textwrap.dedent(statements).strip(), " " * 8)
        (tmp_path / f"{name}.py").write_text(head + body + "\n")
        found = lint(importlib.import_module(name).Net, **settings)
        assert all(one.place.rpartition(":")[0].endswith(f"{name}.py") for one in found)
        lines = head.count("\n")
        return [(one.code, int(one.place.rpartition(":")[2]) - lines) for one in found]

    return find


BREAKS = {
    "MP101": [
        "return F.binary_cross_entropy(x.sigmoid(), y)",
        "self.loss = nn.BCELoss(reduction='mean')",
        "self.loss = F.binary_cross_entropy",
    ],
    "MP102": [
        "return x.masked_fill(mask, -1e9)",
        "return torch.masked_fill(x, mask, value=-1e10)",
        "return torch.where(mask, x, -1e9)",
        "return x + (1.0 - mask) * -10000000.0",
        "return x - (1 - mask) * 1e9",
        "return x * torch.full_like(x, -1e8)",
        "return torch.ones_like(x) * (-2 ** 32 + 1)",
        "x[..., 0] = -1e9",
        "return x.masked_fill(mask, NEG)",
    ],
    "MP103": [
        "return x / (x.norm() + 1e-8)",
        "return torch.log(x + 1e-10)",
        "return (x + EPS).sqrt()",
        "return x.clamp(min=1e-7)",
        "return torch.clamp(x, 1e-7, 1.0)",
        "return F.normalize(x, eps=1e-12)",
    ],
    "MP104": [
        "return F.mse_loss(x, y, reduction='sum')",
        "return F.cross_entropy(x, y, reduction='none').sum()",
        "return nn.BCEWithLogitsLoss(reduction='sum')(x, y)",
    ],
    "MP105": [
        "return self.embedding(x[:, 0:3].long())",
        "return self.tables[0](x[:, 1].int())",
        "return self.emb(x[:, 0:3].long())",
        "ids = x[:, 0:3].long()\nreturn self.item_emb(ids)",
    ],
    "MP106": ["self.metric.set_dtype(torch.half)"],
    "MP108": ["return torch.sparse.mm(mask, x)"],
}
WELL = [
    "return F.binary_cross_entropy_with_logits(x, y)",
    "with torch.autocast('cuda', enabled=False):\n    return F.binary_cross_entropy(x.float(), y)",
    "return x.masked_fill(mask, float('-inf'))",
    "return x.masked_fill(mask, torch.finfo(x.dtype).min)",
    "return x.float().masked_fill(mask, -1e9)",
    "return x.masked_fill(mask, -1e4)",
    "return x * 1e6 + 100000",  # no mask
    "seconds = y / 1e9",
    "return x / (x.float().norm() + 1e-8)",
    "return x / (x.norm() + 1e-4)",
    "return x + 1e-8",  # guards nothing
    "return F.layer_norm(x, (4,), eps=1e-12)",  # added in float32
    "optimizer = torch.optim.Adam(self.parameters(), eps=1e-8)",
    "return F.mse_loss(x, y, reduction='sum') / x.shape[0]",
    "loss = F.mse_loss(x, y, reduction='sum')\nreturn {'loss': loss / len(x)}",
    "loss = F.mse_loss(x, y, reduction='sum')\nloss /= len(x)",
    "return self.scores(x, y, reduction='sum')",
    "return x.sum()",
    "return self.embedding(y)",
    "return y[:, 0].long()",
    "seen = y[:, 0].long()\nreturn self.embedding(y).sum() + seen",
    "return self.assemble(x[:, 0].long())",
    "with torch.autocast('cuda', enabled=False):\n    return torch.sparse.mm(mask, x.float())",
    "if x.dtype == torch.float32:\n    '''a text with -1e9 in it'''",
]
BEFORE = "NEG = -1e9\nEPS = 1e-9\n"


@pytest.mark.parametrize(("code", "statement"), [(code, one) for code, several in BREAKS.items() for one in several])
def test_what_float16_breaks_is_found_at_its_line(codes, code, statement):
    assert codes(statement, before=BEFORE) == [(code, 1)]
    assert codes("x = x * 2\n" + statement, before=BEFORE) == [(code, 2)]


@pytest.mark.parametrize("statement", WELL)
def test_what_float16_bears_is_left_alone(codes, statement):
    assert codes(statement, before=BEFORE) == []


def test_bfloat16_has_the_range_of_float32_and_float32_has_no_findings(codes):
    statements = "\n".join(several[0] for several in BREAKS.values())
    assert {code for code, _ in codes(statements, before=BEFORE)} == set(BREAKS)
    left = {code for code, _ in codes(statements, before=BEFORE, precision="bf16-mixed")}
    assert left == {"MP101", "MP105", "MP106", "MP108"}
    assert codes(statements, precision="32-true") == []


def test_functions_and_bases_of_the_same_package_are_read_too(codes, tmp_path):
    before = (
        "def masked(x, m):\n    return x.masked_fill(m, -1e9)\n"
        "class Base(nn.Module):\n    def loss(self, x, y):\n        return F.mse_loss(x, y, reduction='sum')\n"
    )
    (tmp_path / "layered.py").write_text(
        f"import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n{before}"
        "class Net(Base):\n    def forward(self, x, m):\n        return masked(x, m)\n"
    )
    found = lint(importlib.import_module("layered").Net)
    assert [one.code for one in found] == ["MP102", "MP104"]


def test_layers_metrics_parameters_and_optimizers():
    net = nn.Module()
    net.loss, net.mean = nn.MSELoss(reduction="sum"), nn.MSELoss()
    net.bce, net.lstm, net.half = nn.BCELoss(), nn.LSTM(2, 2), nn.Linear(2, 1, bias=False).half()
    net.error = MeanSquaredError().set_dtype(torch.float16)
    assert [(one.code, one.place) for one in lint(net, device_type="cpu")] == [
        ("MP101", "bce"), ("MP107", "half.weight"), ("MP109", "lstm"), ("MP104", "loss"), ("MP106", "error"),
    ]  # fmt: skip
    assert "MP109" not in {one.code for one in lint(net)}
    assert {one.code for one in lint(net, precision="bf16-mixed", device_type="cpu")} == {"MP101", "MP106", "MP107"}
    linear = nn.Linear(2, 1)
    adam, sgd = torch.optim.AdamW(linear.parameters(), 1e-3), torch.optim.SGD(linear.parameters(), 0.1)
    assert [one.code for one in lint(linear, optimizers=[adam, sgd])] == ["MP111"]
    assert [one.code for one in lint(linear, optimizers=[adam], precision="16-true")] == ["MP110", "MP111"]
    assert not lint(linear, optimizers=[adam], precision="bf16-mixed")
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 0.01)  # low now: its peak counts
    assert schedule.get_last_lr()[0] < 1e-4
    assert [one.code for one in lint(linear, optimizers=[adam])] == ["MP111"]
    others = [RowWiseAdagrad([linear.weight], lr=0.1), torch.optim.Adagrad([linear.bias], 0.1), sgd]
    assert not lint(linear, optimizers=others)  # their rates are other units


def test_the_cure_leaves_out_what_is_done_already():
    adam = torch.optim.AdamW(nn.Linear(2, 1).parameters(), 1e-3)
    (plain,) = findings_in_optimizers([adam], precision="16-mixed")
    (warmed,) = findings_in_optimizers([adam], precision="16-mixed", warmed=True)
    assert plain.cure == "lower the peak to 5e-4 or less, and warm up with `LearningRateWarmup`"
    assert warmed.cure == warmed.to_dict()["cure"] == "lower the peak to 5e-4 or less"
    assert set(warmed.to_dict()) == set(plain.to_dict()) == {"code", "severity", "place", "problem", "name", "cure"}
    assert not list(findings_in_optimizers([adam], precision="16-mixed", warmed=True, max_lr=2e-4))


def test_one_forward_pass_shows_what_the_source_hides():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(10, 4)

        def forward(self, x):
            ids = x.to(torch.int64)
            fill = {"of": -1e9}
            hidden = self.rows(ids[:, 0]).half()
            return hidden.masked_fill(hidden > 0, fill["of"])

    net, x = Net(), torch.ones(3, 2)
    assert lint(net) == ()
    found = lint(net, forward=lambda: net(x))  # the second line raises: what was seen until then counts
    assert [(one.code, one.place) for one in found] == [("MP102", "masked_fill"), ("MP105", "embedding")]
    assert lint(net, forward=lambda: net.rows(torch.ones(3, dtype=torch.int32).long())) == ()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_class_without_source_is_passed_over():
    made = {}
    exec("from torch import nn\nclass Net(nn.Module):\n    pass", made)
    assert lint(made["Net"]()) == ()
    assert lint(type("Dynamic", (nn.Linear,), {})(2, 2)) == ()
    assert lint(torch.jit.script(nn.Linear(2, 2))) == ()


def test_our_own_modules_and_lightnings_demos_have_no_findings():
    own = [
        kind
        for package in (lightning_mp.networks, lightning_mp.models)
        for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for kind in vars(importlib.import_module(entry.name)).values()
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and kind.__module__ == entry.name
    ]
    demos = [boring.BoringModel, boring.DemoModel, lstm.LightningLSTM, transformer.LightningTransformer]
    assert len(own) > 15
    assert [(kind, lint(kind)) for kind in [*own, *demos] if lint(kind)] == []
    assert lint(transformer.LightningTransformer(vocab_size=9)) == ()


def test_a_finding_in_words_and_in_json():
    found = LintFinding(code="MP108", severity="error", place="net.py:3", problem="no kernel")
    assert str(found) == "MP108 net.py:3: no kernel"
    assert found.to_dict()["cure"].startswith("multiply in float32")
    assert list(LINT_CODES) == sorted(LINT_CODES)
