"""The line and path of a setting, compared with a search of the text."""

from __future__ import annotations

import pytest

from lightning_mp.running.yaml_position import Step, locate

TEXT = """\
trainer:
  callbacks:
    - class_path: package.One
      init_args: {threshold: 1.0}
    - class_path: package.Two
      init_args:
        threshold: much
    - class_path: package.Two
      init_args:
        threshold: little
model: package.Plain
data:
  class_path: package.Data
  init_args:
    columns:
      user: u
    features:
      - name: a
      - nme: b
"""


def key(name: str) -> Step:
    return Step("key", name)


def of_class(name: str) -> Step:
    return Step("class", name)


CALLBACKS, DATA = key("trainer.callbacks"), (key("data"), of_class("package.Data"))
CASES = [
    ([CALLBACKS, of_class("package.One"), key("threshold")], None, 4, "trainer.callbacks.0.init_args.threshold"),
    ([CALLBACKS, of_class("package.Two"), key("threshold")], None, 7, "trainer.callbacks.1.init_args.threshold"),
    ([CALLBACKS, of_class("package.Two"), key("threshold")], "little", 10, "trainer.callbacks.2.init_args.threshold"),
    ([CALLBACKS, of_class("elsewhere.longer.Two")], None, 5, "trainer.callbacks.1"),
    ([key("model"), of_class("package.Plain")], None, 11, "model"),
    ([*DATA, key("columns"), key("user")], None, 16, "data.init_args.columns.user"),
    ([*DATA, key("columns.user")], None, 16, "data.init_args.columns.user"),
    ([*DATA, key("features"), of_class("package.Feature"), key("nme")], None, 19, "data.init_args.features.1.nme"),
]


@pytest.mark.parametrize(("steps", "value", "line", "path"), CASES)
def test_the_steps_lead_to_the_place(steps, value, line, path, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(TEXT)
    found = locate(file, steps, value)
    assert found is not None
    assert (found.line, found.path) == (line, path)


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        ([key("nowhere")], None),
        ([key("trainer.callbacks"), of_class("package.Three"), key("threshold")], None),
        ([key("trainer.callbacks"), of_class("package.Two"), key("threshold")], "1.0"),
    ],
)
def test_steps_that_lead_nowhere_give_none(steps, value, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(TEXT)
    assert locate(file, steps, value) is None


def test_an_empty_file_has_no_place(tmp_path):
    (tmp_path / "empty.yaml").write_text("")
    assert locate(tmp_path / "empty.yaml", [key("a")]) is None
