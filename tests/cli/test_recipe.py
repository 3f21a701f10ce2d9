"""`lightning-mp recipe`: what ships is found, shown and copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_mp.cli.recipe import main
from lightning_mp.errors import ConfigurationError


def names(checkout: Path) -> list[str]:
    return sorted(path.stem for path in (checkout / "recipes").glob("*.yaml"))


def test_every_recipe_is_listed_with_what_it_is_for(checkout, capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names(checkout)
    assert all(len(line.split()) > 2 for line in lines)


def test_a_recipe_is_shown_and_copied_byte_for_byte(checkout, capsys, tmp_path):
    for name in names(checkout):
        expected = (checkout / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
        assert main(["show", name]) == 0
        assert capsys.readouterr().out == expected
        assert main(["copy", name]) == 0
        assert capsys.readouterr().out == f"{name}.yaml\n"
        assert (tmp_path / f"{name}.yaml").read_text(encoding="utf-8") == expected
        assert main(["copy", name, "mine/other.yaml"]) == 0
        assert capsys.readouterr().out == "mine/other.yaml\n"
        assert (tmp_path / "mine" / "other.yaml").read_text(encoding="utf-8") == expected
        (tmp_path / "mine" / "other.yaml").unlink()


def test_a_copy_never_replaces_a_file(checkout, tmp_path):
    name = names(checkout)[0]
    (tmp_path / f"{name}.yaml").write_text("mine")
    with pytest.raises(ConfigurationError, match=f"`{name}.yaml` is there already"):
        main(["copy", name])
    assert (tmp_path / f"{name}.yaml").read_text() == "mine"


def test_a_name_that_is_none_is_told_with_the_nearest(checkout):
    name = names(checkout)[0]
    with pytest.raises(ConfigurationError, match="there is no recipe") as caught:
        main(["show", f"{name}x"])
    assert f"`{name}`" in caught.value.hint


def test_wrong_usage_is_one_error():
    with pytest.raises(ConfigurationError, match="invalid choice: 'lst'"):
        main(["lst"])
    with pytest.raises(ConfigurationError, match="`show` needs the name of a recipe"):
        main(["show"])
