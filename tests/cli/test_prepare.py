"""`lightning-mp prepare`: a recipe's data part, alone, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning_utilities.core import rank_zero

from lightning_mp.cli.main import main as lightning_mp
from lightning_mp.cli.prepare import main, summary
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError

RECIPE = """
data:
  class_path: lightning_mp.datamodules.ranking.RankingDataModule
  init_args:
    path: log.csv
    store: store
    columns: {user: user_id, item: item_id, time: at, event: {constant: order}, value: stars}
    label: {value: stars, at_least: 4}
    features:
      - {name: user_id, kind: id, role: user}
      - {name: item_id, kind: id, role: item}
      - {name: price, kind: numeric, role: item, transform: zscore}
    max_bad_share: 0.2
"""


def write(folder: Path, recipe: str = RECIPE, bad: int = 1) -> None:
    rows = [f"u{i % 7},i{i % 5},{1_700_000_000 + i * 3600},{1 + i % 5},{10 + i % 13}.5" for i in range(60)]
    rows += [f"u1,i1,{'not a time'},3,1.5"] * bad
    (folder / "log.csv").write_text("\n".join(["user_id,item_id,at,stars,price", *rows]) + "\n")
    (folder / "mine.yaml").write_text(recipe)


def test_the_store_is_made_and_summed_up(tmp_path, capsys, caplog):
    write(tmp_path, bad=7)
    with caplog.at_level("INFO", logger=rank_zero.log.name):
        assert main(["--config", "mine.yaml"]) == 0
    assert "wrote version 1" in caplog.text
    assert "feature `" not in caplog.text  # the summary has each
    shown = capsys.readouterr().out
    store = FeatureStore(tmp_path / "store")
    assert store.manifest.version == 1
    assert "log: 67 rows, 7 rejected" in shown
    assert "line 62, column `at`: 'not a time'" in shown
    assert "  and 2 more" in shown
    for split in ("train", "validation", "test"):
        assert f"{split:<10}  {store.manifest.rows(split):>12,} rows" in shown
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    assert lines["user_id"][1:3] == ["id", "int32"]
    assert lines["price"][1:3] == ["numeric", store.schema.feature("price").stored_dtype]
    assert lines["price"][3].rstrip(",") == "zscore"
    assert lines["price"].count("zscore,") == 1
    assert " entries, " in " ".join(lines["user_id"])
    assert lines[store.schema.labels[0].name][-2:] == ["the", "label"]


def test_what_is_there_already_is_not_made_again(tmp_path, capsys):
    write(tmp_path)
    assert main(["--config=mine.yaml"]) == 0
    first = capsys.readouterr().out
    assert main(["-c", "mine.yaml"]) == 0
    assert capsys.readouterr().out == first
    assert FeatureStore(tmp_path / "store").versions() == (1,)


def test_an_option_overrides_the_recipe(tmp_path, capsys):
    write(tmp_path)
    assert main(["--config", "mine.yaml", "--data.store", "elsewhere"]) == 0
    assert FeatureStore(tmp_path / "elsewhere").versions() == (1,)
    assert not (tmp_path / "store").exists()


def test_a_recipe_with_a_model_and_a_trainer_is_taken_and_neither_is_built(tmp_path, capsys):
    others = """
seed_everything: 3
model:
  class_path: lightning_mp.models.ranking.RankingModule
  init_args: {network: {class_path: lightning_mp.networks.dcn_v2.DCNv2}}
trainer: {max_epochs: 1, accelerator: tpu, devices: 99}
"""
    write(tmp_path, RECIPE + others)
    assert main(["--config", "mine.yaml"]) == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("path: log.csv", "path: nothing.csv"), "nothing.csv"),
        (("item: item_id", "item: itm_id"), "`itm_id`"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_error(tmp_path, capsys, wrong, words):
    write(tmp_path, RECIPE.replace(*wrong))
    assert lightning_mp(["prepare", "--config", "mine.yaml"]) in (2, 3)
    shown = capsys.readouterr().err
    assert words in shown
    assert "hint: " in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "store").exists()


def test_a_wrong_key_is_one_line_with_its_place(tmp_path, capsys):
    write(tmp_path, RECIPE.replace("max_bad_share", "max_bad_shar"))
    assert lightning_mp(["prepare", "--config", "mine.yaml"]) == 2
    shown = capsys.readouterr().err
    assert "mine.yaml:13" in shown
    assert "max_bad_shar" in shown
    assert "did you mean `max_bad_share`?" in shown
    assert len(shown.splitlines()) == 1


def test_no_recipe_is_one_error():
    with pytest.raises(ConfigurationError, match="`prepare` needs a recipe"):
        main([])
    with pytest.raises(ConfigurationError, match=r"there is no file `mine/x\.yaml`"):
        main(["--config", "mine/x.yaml"])


def test_a_store_that_no_recipe_made_is_summed_up_too(tmp_path):
    import pyarrow as pa

    store = FeatureStore(tmp_path / "plain")
    store.write(pa.table({"embedding": [[1.0, 2.0]] * 3}))
    lines = summary(store)
    assert "3 rows" in "\n".join(lines)
    assert lines[-1].split()[:3] == ["embedding", "vector", f"{store.schema.feature('embedding').stored_dtype}[2]"]
