"""Recipes are found by name and by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_mp.errors import ConfigurationError
from lightning_mp.running.recipe import available, find, folder


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "recipes/quickstart.yaml", "recipes/quickstart"])
def test_a_shipped_recipe_is_found_where_no_folder_recipes_lies(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find(name) == folder() / "quickstart.yaml"


def test_a_file_of_ones_own_wins_over_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipes").mkdir()
    Path("recipes/quickstart.yaml").write_text("seed_everything: 1\n")
    assert find("recipes/quickstart.yaml") == Path("recipes/quickstart.yaml")


def test_all_recipes_are_named():
    assert set(available()) == {path.stem for path in folder().glob("*.yaml")}
    assert {"quickstart", "ratings"} <= set(available())


def test_the_nearest_name_is_offered():
    with pytest.raises(ConfigurationError, match="no recipe `quikstart`") as error:
        find("quikstart")
    assert error.value.hint == "did you mean `quickstart`?"


def test_a_path_that_is_not_there_and_a_folder_are_said_to_be_so(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no file"):
        find(str(tmp_path / "mine.yaml"))
    with pytest.raises(ConfigurationError, match="is a folder"):
        find(str(tmp_path))


def test_a_path_that_is_not_there_gets_the_nearest_file_beside_it(tmp_path, monkeypatch):
    (tmp_path / "clicks.yaml").touch()
    monkeypatch.chdir(tmp_path)
    for typed, meant in (("click.yaml", "clicks.yaml"), ("quikstart.yaml", "quickstart.yaml")):
        with pytest.raises(ConfigurationError, match=f"there is no file `{typed}`") as error:
            find(typed)
        assert error.value.hint == f"did you mean `{meant}`?"
    with pytest.raises(ConfigurationError, match="there is no file") as error:
        find(str(tmp_path / "cliks.yml"))
    assert error.value.hint == f"did you mean `{tmp_path / 'clicks.yaml'}`?"
