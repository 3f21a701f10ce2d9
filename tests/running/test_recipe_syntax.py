"""Files that are no recipe, or would be read otherwise than they look."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_mp.errors import ConfigurationError
from lightning_mp.running.cli import main
from lightning_mp.running.recipe import available
from lightning_mp.running.recipe_syntax import require_recipe

SOUND = """\
shared: &shared {a: 1, b: [1, 2]}
model:
  class_path: x.Y
  init_args: {<<: *shared, network: *shared}
data: {list: [{a: 1}, {a: 2}], again: *shared}
"""
NO_RECIPE = {
    "empty": ("", "`bad.yaml` is empty", "recipe copy quickstart"),
    "comment": ("# nothing\n", "`bad.yaml` is empty", "recipe copy quickstart"),
    "list": ("- 1\n- 2\n", "bad.yaml:1: a recipe has keys such as `model:` and `data:`, this is a list", "copy"),
    "word": ("\nquickstart\n", "bad.yaml:2: a recipe has keys such as `model:` and `data:`, this is one value", "copy"),
    "key twice": (
        "a: 1\nmodel:\n  x: 1\n  y: 2\n  x: 3\n",
        "bad.yaml:5: `model.x` stands here and in line 3; YAML would keep the last one without a word",
        "delete one of the two",
    ),
    "key twice in a list": (
        "a:\n- {b: 1}\n- {b: 1, b: 1}\n",
        "bad.yaml:3: `a.1.b` stands here and in line 3",
        "delete",
    ),
    "alias of itself": (
        "data: &d\n  init_args: *d\n",
        "bad.yaml:1: `data.init_args` is an alias of what it stands in",
        "write the value out",
    ),
    "bracket": ("a: {b: 2]\n", "bad.yaml:1: this is not YAML: ", "mend the line"),
    "tab": ("a: 1\n\tb: 2\n", "bad.yaml:2: this is not YAML: found character '\\t'", "indent with blanks"),
    "quote": ("a: 'b\nc: 1\n", "bad.yaml:3: this is not YAML: ", "may begin above"),
    "indent": ("a:\n    b: 1\n   c: 2\n", "bad.yaml:3: this is not YAML: ", "mend the line"),
    "control character": ("a: \x01\n", "bad.yaml: this is not YAML: ", "save the recipe as plain text"),
}


@pytest.mark.parametrize("how", NO_RECIPE)
def test_a_file_that_is_no_recipe_is_refused_before_it_is_read(tmp_path, monkeypatch, how):
    text, problem, hint = NO_RECIPE[how]
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        main(["fit", "--config", "bad.yaml"])
    assert refused.value.problem.startswith(problem)
    assert hint in refused.value.hint


def test_bytes_that_are_no_text_name_the_file_and_the_byte(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(b"seed_everything: 1\ntrainer: \xff\xfe\n")
    with pytest.raises(ConfigurationError, match=r"`.*bad.yaml` is not UTF-8 text: byte 28 is 0xff"):
        require_recipe(tmp_path / "bad.yaml")


def test_anchors_merges_and_equal_keys_of_different_mappings_are_sound(tmp_path):
    (tmp_path / "sound.yaml").write_text(SOUND, encoding="utf-8")
    require_recipe(tmp_path / "sound.yaml")


def test_aliases_of_aliases_are_looked_at_once(tmp_path):
    levels = [f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}]\n" for n in range(1, 60)]
    (tmp_path / "deep.yaml").write_text("l0: &l0 [1]\n" + "".join(levels), encoding="utf-8")
    require_recipe(tmp_path / "deep.yaml")


def test_the_shipped_recipes_are_sound():
    for path in available().values():
        require_recipe(path)
