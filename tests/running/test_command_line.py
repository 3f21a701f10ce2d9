"""Recipe names become paths, and `sys.argv` comes back."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest

from lightning_mp.errors import ConfigurationError
from lightning_mp.running.command_line import command_line, with_recipes
from lightning_mp.running.recipe import find


@pytest.mark.parametrize("given", [["--config", "quickstart"], ["--config=quickstart"], ["-c", "quickstart"]])
def test_each_way_to_name_a_recipe_gives_its_path(given):
    found = with_recipes(["--trainer.max_epochs", "2", *given, "--data.path", "quickstart"])
    assert str(find("quickstart")) in found[2:-2][-1]
    assert found[-1] == "quickstart", "only the value of --config is a recipe"


def test_two_recipes_are_both_found():
    assert with_recipes(["-c", "quickstart", "-c=ratings"]) == ["-c", str(find("quickstart")), f"-c={find('ratings')}"]


def test_a_name_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="no recipe `fastfinish`"):
        with_recipes(["--config", "fastfinish"])


def test_the_command_line_comes_back_after_an_error():
    before = sys.argv
    seen = []
    with suppress(ValueError), command_line(["fit", "-x"]):
        seen += sys.argv
        raise ValueError
    assert seen == ["lightning-mp", "fit", "-x"]
    assert sys.argv is before
