"""A refused setting is one line: file, line, key, and what may have been meant. Asked of the real parser."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from lightning_mp.running.cli import main
from lightning_mp.running.recipe import find


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Change the quickstart recipe, run it, and give the one line of the error and the line of the change."""
    monkeypatch.chdir(tmp_path)

    def run(old: str, new: str, *options: str) -> tuple[str, int]:
        text = find("quickstart").read_text()
        assert old in text, f"the recipe has no {old!r}"
        text = text.replace(old, new, 1)
        Path("bad.yaml").write_text(text)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["fit", "--config", "bad.yaml", *options])
        assert end.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        return lines[0], next((n for n, line in enumerate(text.splitlines(), 1) if new and new in line), 0)

    return run


UNKNOWN = {  # old, new, key path, owner, meant
    "top": ("seed_everything:", "sed_everything:", "sed_everything", "", "seed_everything"),
    "group": ("\nmodel:", "\nmodle:", "modle", "", "model"),
    "trainer": ("max_epochs:", "max_epoch:", "trainer.max_epoch", "", "trainer.max_epochs"),
    "callback": ("patience:", "patence:", "trainer.callbacks.*.init_args.patence", "EarlyStopping", "patience"),
    "factory": (
        "{precision: auto}", "{precison: auto}", "trainer.plugins.0.init_args.precison", "mixed_precision", "precision",
    ),
    "module": ("    task: click", "    tsk: click", "model.init_args.tsk", "RankingModule", "task"),
    "network": ("cross_layers:", "cros:", "model.init_args.network.init_args.cros", "DCNv2", "cross_layers"),
    "optimizer": ("lr:", "learning:", "model.init_args.optimizer.init_args.learning", "AdamW", None),
    "data": ("    batch_size:", "    batchsize:", "data.init_args.batchsize", "RankingDataModule", "batch_size"),
    "columns": ("user: user_id", "usr: user_id", "data.init_args.columns.usr", "Columns", "user"),
    "event": ("{flags: ", "{flag: ", "data.init_args.columns.event.flag", "EventFlags", "flags"),
    "feature": ("of: hour", "oof: hour", "data.init_args.features.*.oof", "FeatureSpec", "of"),
    "synthetic": ("items: 500", "itms: 500", "data.init_args.synthetic.itms", "SyntheticLog", "items"),
    "split": ("validation: 0.1", "validaton: 0.1", "data.init_args.split.validaton", "TimeSplit", "validation"),
}  # fmt: skip


@pytest.mark.parametrize("place", UNKNOWN)
def test_an_unknown_key_names_file_line_key_owner_and_the_nearest_name(refused, place):
    old, new, key, owner, meant = UNKNOWN[place]
    line, number = refused(old, new)
    number = number or find("quickstart").read_text().splitlines().index(old.strip()) + 1
    assert fnmatch(line, f"error: bad.yaml:{number}: `{key}` is not an option*")
    assert f"of `{owner}`" in line if owner else "of `" not in line
    assert (f"did you mean `{meant}`?" in line) if meant else ("did you mean" not in line)


VALUES = {
    "trainer": ("max_epochs: ", "max_epochs: many # ", "trainer.max_epochs", "'many'", "int"),
    "callback": ("patience: 2", "patience: two", "trainer.callbacks.*.init_args.patience", "'two'", "int"),
    "network": (
        "embedding_dim: 8", "embedding_dim: wide", "model.init_args.network.init_args.embedding_dim", "'wide'", "int",
    ),
    "choice": ("task: click", "task: clack", "model.init_args.task", "'clack'", "click"),
    "split": ("test: 0.2}", "test: much}", "data.init_args.split.test", "'much'", "float"),
    "feature": ("kind: id, role: item", "kind: idd, role: item", "data.init_args.features.*.kind", "'idd'", "numeric"),
    "data": ("batch_size: ", "batch_size: big # ", "data.init_args.batch_size", "'big'", "int"),
}  # fmt: skip


@pytest.mark.parametrize("place", VALUES)
def test_a_value_of_a_wrong_type_is_shown_with_what_was_expected(refused, place):
    old, new, key, value, expected = VALUES[place]
    line, number = refused(old, new)
    assert fnmatch(line, f"error: bad.yaml:{number}: `{key}` cannot be {value}*")
    assert expected in line
    assert "<class" not in line


CLASSES = {
    "callback": ("lightning_mp.KeepInFP32", "lightning_mp.KeepInFP16", "trainer.callbacks.*.class_path", "KeepInFP32"),
    "network": ("lightning_mp.DCNv2", "lightning_mp.DCNv3", "model.init_args.network.class_path", "DCNv2"),
    "module": ("lightning_mp.RankingModule", "lightning_np.RankingModule", "model.class_path", ""),
    "data": ("lightning_mp.RankingDataModule", "lightning_mp.RankingData", "data.class_path", "RankingDataModule"),
}  # fmt: skip


@pytest.mark.parametrize("place", CLASSES)
def test_a_class_that_is_not_there_is_named_with_the_nearest(refused, place):
    old, new, key, meant = CLASSES[place]
    line, number = refused(old, new)
    assert fnmatch(line, f"error: bad.yaml:{number}: `{key}`: *")
    assert f"did you mean `{meant}`?" in line if meant else "No module named 'lightning_np'; a module in this" in line
    assert ("PYTHONPATH=." in line) is (not meant)


NAMES = {
    "kind": ("kind: numeric, role: user}", "kind: categoric, role: user}", "categorical"),
    "transform": ("transform: log1p_zscore", "transform: log1_zscore", "log1p_zscore"),
    "task": ("task: click", "task: clik", "click"),
}


@pytest.mark.parametrize("setting", NAMES)
def test_a_word_that_is_not_one_of_those_allowed_gets_the_nearest(refused, setting):
    old, new, meant = NAMES[setting]
    line, _ = refused(old, new)
    assert line.endswith(f"; did you mean `{meant}`?")


def test_a_missing_setting_says_which_option_gives_it(refused):
    line, _ = refused("      user: user_id\n", "")
    assert "`data.init_args.columns.user` is required" in line
    assert "`--data.columns.user VALUE`" in line


TYPED = {
    "trainer": (["--trainer.max_epoch", "3"], "`--trainer.max_epoch` is not an option", "`--trainer.max_epochs`"),
    "top": (["--sed_everything", "3"], "`--sed_everything` is not an option", "`--seed_everything`"),
    "data": (["--data.pth", "x"], "`--data.pth` is not an option of `RankingDataModule`", "`path`"),
    "columns": (["--data.columns.usr=x"], "`--data.columns.usr` is not an option", "`user`"),
    "network": (["--model.network.cross", "3"], "`--model.network.cross` is not an option of `DCNv2`", "cross_layers"),
    "two of a name": (
        ["--data.columns.event=x", "--data.label={event: order, at_most: 4}"], "`--data.label` is not an option", "",
    ),
    "group": (
        ["--data.syntetic.impressions", "5"], "`--data.syntetic.impressions` is not an option", "`synthetic`",
    ),
    "value": (["--trainer.max_epochs", "x"], "`--trainer.max_epochs` cannot be 'x'", "int"),
    "nested value": (["--data.batch_size=ten"], "`--data.batch_size` cannot be 'ten'", "int"),
    "of an optimizer": (["--model.optimizer.lr", "nan"], "`--model.optimizer.lr` cannot be 'nan'", "float"),
}  # fmt: skip


@pytest.mark.parametrize("place", TYPED)
def test_an_option_on_the_command_line_is_named_as_it_was_typed(refused, place):
    options, problem, meant = TYPED[place]
    line, _ = refused("seed_everything: 42", "seed_everything: 42", *options)
    assert line.startswith(f"error: {problem}")
    assert meant in line
    assert "bad.yaml" not in line


def test_a_list_where_an_object_stands_says_what_is_expected(refused):
    line, _ = refused("data:\n  class_path", "data: [1, 2]\nother:\n  class_path")
    assert line.startswith("error: bad.yaml:")
    assert "`data` cannot be '[1, 2]': expected a LightningDataModule" in line
    assert "`class_path`" in line


def test_a_key_that_yaml_reads_as_a_boolean_is_found(refused):
    line, _ = refused("    features:\n", "    features: # all\n      - {name: x, kind: categorical, off: hour}\n")
    assert line.startswith("error: bad.yaml:")
    assert "`data.init_args.features`: Key must be a string, got: False" in line


def test_no_recipe_says_to_pass_one(capsys):
    with pytest.raises(SystemExit) as end:
        main(["fit"])
    assert end.value.code == 2
    assert "`--config`" in capsys.readouterr().err
