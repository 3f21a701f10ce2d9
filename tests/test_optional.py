"""An optional package is imported, or the extra that brings it is named."""

from __future__ import annotations

import json

import pytest

from lightning_mp.errors import MissingExtraError
from lightning_mp.optional import require


def test_an_installed_module_is_returned():
    assert require("json", "serve") is json
    assert require("json.decoder", "serve") is json.decoder


@pytest.mark.parametrize("name", ["absent_package", "absent_package.inner"])
def test_a_missing_one_names_the_extra(name):
    with pytest.raises(MissingExtraError) as caught:
        require(name, "search")
    assert str(caught.value) == (
        f"`{name}` is needed here and is not installed\n\nhint: run `pip install 'lightning-mp[search]'`"
    )
    assert isinstance(caught.value, ImportError)


def test_a_package_that_lacks_a_dependency_of_its_own_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs") as caught:
        require("half_installed", "serve")
    assert not isinstance(caught.value, MissingExtraError)


def test_an_error_inside_the_module_passes_through(tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("raise RuntimeError('driver too old')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="driver too old"):
        require("broken_on_import", "serve")
