from __future__ import annotations

import pytest
from jsonargparse import ArgumentParser, Namespace

from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.errors import ConfigurationError, DataError


def test_yaml_builds_it_faults_and_all(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "synthetic: {impressions: 1000, seed: 3, form: long, faults: {negative_ages: true}}"
    )
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--synthetic", type=SyntheticLog)
    parsed = parser.instantiate(parser.parse_args(["--config", str(tmp_path / "recipe.yaml")]))
    assert isinstance(parsed, Namespace)
    assert parsed.synthetic == SyntheticLog(impressions=1000, seed=3, form="long", faults=Faults(negative_ages=True))


def test_json_and_back():
    settings = SyntheticLog(impressions=12, days=3, faults=Faults(future_leaks=True))
    assert SyntheticLog.from_json(settings.to_json()) == settings


def test_another_version_is_refused():
    text = SyntheticLog().to_json().replace('"version":1', '"version":99')
    with pytest.raises(DataError, match="version 99, this package draws version 1"):
        SyntheticLog.from_json(text)


def test_a_written_log_knows_its_settings(tmp_path):
    settings = SyntheticLog(impressions=100, users=9, items=9, seed=4)
    assert SyntheticLog.of(write_log(tmp_path / "log", settings)) == settings


@pytest.mark.parametrize(
    ("setting", "value", "least"),
    [
        ("impressions", 0, 1), ("impressions", 1.5, 1), ("users", -3, 1), ("users", True, 1), ("items", 0, 1),
        ("days", 0, 1), ("seed", -1, 0),
    ],
)  # fmt: skip
def test_a_number_below_its_limit_is_named(setting, value, least):
    with pytest.raises(ConfigurationError, match=rf"`synthetic.{setting}` must be a whole number from {least}, got"):
        SyntheticLog(**{setting: value})


def test_an_unknown_form_is_named():
    with pytest.raises(ConfigurationError, match="must be `wide` or `long`, got 'tall'"):
        SyntheticLog(form="tall")
