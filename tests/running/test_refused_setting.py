"""What a record of a recipe refuses comes with file, line, key, value and one thing to do, not as the parser's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.running.cli import main
from lightning_mp.running.recipe import find
from lightning_mp.running.recipe_data import recipe_datamodule
from lightning_mp.running.refused_setting import placed_refusals, refusal

REFUSED = {  # old, new, key, value, hint
    "flags": ("{flags: {click:", "{flags: {klick:", "`columns.event.flags`", "'klick'", "did you mean `click`?"),
    "constant": ("{flags: {click: click}}", "{constant: ordr}", "`columns.event.constant`", "'ordr'", "`order`"),
    "zone": ("item: item_id", "time_zone: Berlin\n      item: item_id", "`columns.time_zone`", "'Berlin'",
             "did you mean `Europe/Berlin`?"),
    "label": ("{event: click}", "{event: clck}", "`label.event`", "'clck'", "did you mean `click`?"),
    "weights": ("{event: click}", "{preference: {clik: 1}}", "`label.preference.clik`", "'clik'", "`click`"),
    "split": ("validation: 0.1", "validation: 1.1", "`split.validation`", "1.1", "0.1"),
    "audit": ("fail_under: 80", "fail_under: 800", "`audit.fail_under`", "800", "80"),
    "synthetic": ("impressions: 1000000", "impressions: -1", "`synthetic.impressions`", "-1", "leave it out"),
    "feature": ("name: age,", "name: age, missing: mode,", "feature `age`: `missing`", "'mode'", "`features`"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["fit", "prepare"])
@pytest.mark.parametrize("record", REFUSED)
def test_a_record_that_refuses_its_settings_is_placed(tmp_path, monkeypatch, record, command):
    old, new, key, value, hint = REFUSED[record]
    text = find("quickstart").read_text().replace(old, new, 1)
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(text)
    given = ["--config", "bad.yaml"]
    line = next(n for n, words in enumerate(text.splitlines(), 1) if new.split("\n")[0] in words)
    run = (lambda: main(["fit", *given])) if command == "fit" else (lambda: recipe_datamodule("prepare", given))
    with pytest.raises(ConfigurationError) as error:
        run()
    assert error.value.problem.startswith(f"bad.yaml:{line}: {key}")
    assert "\n" not in error.value.problem
    assert value in error.value.problem
    assert hint in error.value.hint
    assert error.value.exit_code == 2


def test_a_setting_of_the_command_line_has_no_place_in_a_file():
    with pytest.raises(ConfigurationError) as error:
        recipe_datamodule("prepare", ["--config", "quickstart", "--data.split.validation", "1.5"])
    assert error.value.problem == "`split.validation` must be in [0, 1), got 1.5"


def test_other_errors_pass():
    with pytest.raises(ValueError, match="anything"), placed_refusals([], []):
        raise ValueError("anything")
    assert refusal(ValueError("anything")) is None
    cause = DataError("no rows", "give some")
    error = ValueError("the parser's words")
    error.__cause__ = cause
    assert refusal(error) is cause
