from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_mp.cli.main import main
from lightning_mp.running.recipe import find

NET = """
from torch import nn

WIDTH = 4

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, 1).half()

    def forward(self, x, mask):
        return self.layer(x).masked_fill(mask, -1e9) / (x.norm() + 1e-8)

class NeedsArguments(nn.Module):
    def __init__(self, width):
        super().__init__()

    def forward(self, x):
        return x / (x.norm() + 1e-8)

class Plain:
    pass

exec("class Made(Net):\\n    def forward(self, x):\\n        return x + 1e-8")
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def test_a_class_in_a_file(net, capsys):
    assert main(["lint", "net.py:Net", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["severity"], one["place"]) for one in found] == [
        ("MP102", "error", "net.py:12"),
        ("MP107", "error", "layer.bias"),
        ("MP107", "error", "layer.weight"),
        ("MP103", "warning", "net.py:12"),
    ]
    assert main(["lint", "net.py:Net"]) == 3
    out = capsys.readouterr().out
    assert "MP102" in out
    assert "net.py:12" in out


def test_a_class_that_needs_arguments_is_read_not_built(net, capsys):
    assert main(["lint", "net.py:NeedsArguments"]) == 0  # a warning alone
    assert "MP103" in capsys.readouterr().out
    assert main(["lint", "net.py:NeedsArguments", "--fail-on", "warning"]) == 3
    assert main(["lint", "net.py:NeedsArguments", "--fail-on", "warning", "--ignore", "MP103"]) == 0
    assert main(["lint", "net.py:Net", "--fail-on", "never"]) == 0


def test_a_class_of_an_installed_package(capsys):
    assert main(["lint", "lightning.pytorch.demos.boring_classes:DemoModel", "--fail-on", "note"]) == 0
    assert capsys.readouterr().out == "no findings\n"


def test_a_recipe(capsys, tmp_path):
    assert main(["lint", "--config", "quickstart", "--json"]) == 0
    assert [one["code"] for one in json.loads(capsys.readouterr().out)] == ["MP111"]
    said = Path(find("quickstart")).read_text(encoding="utf-8")
    assert "lr: 5.0e-3, weight_decay: 1.0e-2} # above 5e-4 (MP111): " in said
    warm = "trainer:\n  callbacks:\n    - class_path: lightning_mp.LearningRateWarmup\n      init_args: {max_lr: %s}\n"
    model = "model:\n  class_path: torch.optim.AdamW\n  init_args: {lr: 1.0e-3}\n"
    for limit, codes in (("2.0e-4", []), ("1.0e-3", ["MP111"])):
        (tmp_path / "warm.yaml").write_text(warm % limit + model)
        main(["lint", "--config", str(tmp_path / "warm.yaml"), "--precision", "16-mixed", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert [one["code"] for one in found] == codes
        assert not any("warm up" in one["cure"] for one in found)
    recipe = tmp_path / "fp32.yaml"
    recipe.write_text("model:\n  class_path: torch.optim.Adam\n  init_args: {lr: 1.0}\n")
    assert main(["lint", "--config", str(recipe)]) == 0
    assert "trains in 32-true" in capsys.readouterr().err
    assert main(["lint", "--config", str(recipe), "--precision", "16-true"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to lint"),
        (["nowhere:Net"], "cannot be imported"),
        (["nowhere.py:Net"], "no file"),
        (["net.py:Nothing"], "cannot be imported"),
        (["Net"], "names no class"),
        (["net.py:Net", "--ignore", "MP9"], "no such code"),
        (["os:system"], "`os:system` is of type `builtin_function_or_method`, and no `nn.Module`"),
        (["net.py:WIDTH"], "`net.py:WIDTH` is of type `int`, and no `nn.Module` or `LightningModule`"),
        (["net.py:Plain"], "`net.py:Plain` is a class, and no `nn.Module` or `LightningModule`"),
    ],
)
@pytest.mark.usefixtures("net")
def test_refusals(capsys, arguments, words):
    assert main(["lint", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("net")
def test_a_module_without_source_is_judged_by_its_layers_and_said_to_be(capsys):
    assert main(["lint", "net.py:Made", "--json"]) == 3
    shown = capsys.readouterr()
    assert {one["code"] for one in json.loads(shown.out)} == {"MP107", "MP102", "MP103"}  # of its base
    assert shown.err == "note: the source of `net.py:Made` cannot be read, what its code does is not judged\n"
    assert main(["lint", "net.py:Net", "--json"]) == 3
    assert not capsys.readouterr().err


@pytest.mark.parametrize("line", ["import sys; sys.exit(0)", "raise RuntimeError('no GPU')", "def (:"])
def test_a_file_that_ends_while_it_is_imported_is_no_clean_lint(tmp_path, line, capsys):
    path = tmp_path / "ends.py"
    path.write_text(f"class Net:\n    pass\n\n\n{line}\n")
    assert main(["lint", f"{path}:Net"]) == 2
    assert f"`{path}:Net` cannot be imported" in capsys.readouterr().err
    path.write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        raise SystemExit(7)\n"
    )
    assert main(["lint", f"{path}:Net"]) == 0
