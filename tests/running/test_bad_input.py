"""Input that cannot be used: one clear error, its exit code, no traceback, and nothing lost that was written before."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl  # noqa: F401 (its log handler keeps the stderr of its import, so not inside a test)
import pytest

from lightning_mp.cli.main import main
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.running.recipe import find

HEADER = "userId,movieId,rating,timestamp"
GOOD = "\n".join([HEADER, *(f"{n % 7},{n % 11},{1 + n % 5},{1_000_000_000 + 1000 * n}" for n in range(200))])


def rows(*lines: str) -> str:
    return "\n".join([HEADER, *lines])


FILES = {  # content (None: there is no file), exit code, words of the error
    "missing": (None, 3, ["`bad.csv` does not exist"]),
    "empty": ("", 3, ["`bad.csv` is empty"]),
    "header only": (HEADER + "\n", 3, ["`bad.csv`"]),
    "column missing": (GOOD.replace("movieId", "movie_id"), 3, ["`movieId` (columns.item)", "`movie_id`"]),
    "label of one class": (GOOD.replace(",1,1", ",5,1"), 3, ["`rating`"]),
    "one time": (rows(*(f"{n},{n},{1 + n % 5},1000000000" for n in range(50))), 3, ["time"]),
    "bad rows": (rows(*("a,b,c,d" for _ in range(50))), 3, ["50 of 50 rows are bad", "line 2"]),
    "binary": ("\x00\x01\x02" * 50, 3, ["`bad.csv`"]),
}


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Run the ratings recipe on a file and give the exit code and the complaint."""
    monkeypatch.chdir(tmp_path)

    def run(path: str, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        config = () if any(option.startswith("--config") for option in options) else ("--config=ratings",)
        code = main(["fit", *config, *options, f"--data.path={path}", "--trainer.accelerator=cpu"])
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.count("error: ") == 1
        assert error.count("hint: ") == 1
        return code, error[error.index("error: ") :]

    return run


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_cannot_be_used_is_one_clear_error(fit, what):
    content, expected, words = FILES[what]
    if what == "label of one class":
        content = rows(*(f"{n % 7},{n % 11},5,{1_000_000_000 + 1000 * n}" for n in range(200)))
    if content is not None:
        Path("bad.csv").write_text(content)
    code, error = fit("bad.csv")
    assert code == expected, error
    for word in words:
        assert word in error
    assert not Path("runs/ratings/store/LATEST").exists()
    assert not list(Path("runs").rglob(".lightning_mp-tmp-*"))


def test_a_folder_where_a_file_should_be_names_its_files(fit):
    Path("logs").mkdir()
    Path("logs/ratings.csv").write_text(GOOD)
    code, error = fit("logs")
    assert code == 3
    assert "`logs` is a folder" in error
    assert "logs/ratings.csv" in error


def test_unknown_kinds_of_event_are_named(fit):
    Path("bad.csv").write_text(GOOD)
    recipe = find("ratings").read_text()
    for old, new in (("{constant: order}", "rating"), ("{value: rating, at_least: 4}", "{preference: {order: 1.0}}")):
        assert old in recipe
        recipe = recipe.replace(old, new)
    Path("mine.yaml").write_text(recipe.replace("      value: rating\n", ""))
    code, error = fit("bad.csv", "--config=mine.yaml")
    assert code == 3
    assert "column `rating`: unknown kinds of event: `" in error
    assert "event_map" in error


def test_no_log_says_to_pass_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config=ratings", "--trainer.accelerator=cpu"]) == 2
    assert "--data.path" in capsys.readouterr().err


def test_bad_input_leaves_the_store_that_was_there(fit):
    Path("good.csv").write_text(GOOD)
    assert main(["prepare", "--config=ratings", "--data.path=good.csv"]) == 0
    before = FeatureStore("runs/ratings/store")
    version, first = before.versions(), before.load("train").ids[:5].tolist()
    Path("bad.csv").write_text(rows("1,1,5,x", "2,2,1,y"))
    code, _ = fit("bad.csv")
    assert code == 3
    after = FeatureStore("runs/ratings/store")
    assert after.versions() == version
    assert after.load("train").ids[:5].tolist() == first


SETTINGS = {  # option, words of the error
    "learning rate": ("--model.optimizer.lr=.nan", ["Invalid learning rate: nan", "`optimizer`"]),
    "large seed": (
        "--seed_everything=99999999999",
        ["`seed_everything` is 99,999,999,999; a seed is 0 to 4,294,967,2"],
    ),
    "negative seed": ("--seed_everything=-1", ["`seed_everything` is -1;"]),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_setting_out_of_range_is_refused_by_its_value(fit, what):
    option, words = SETTINGS[what]
    Path("good.csv").write_text(GOOD)
    code, error = fit("good.csv", option)
    assert code == 2, error
    for word in words:
        assert word in error


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_runs_without_a_logger_may_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text(GOOD)
    options = ["--data.path=good.csv", "--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.max_epochs=1"]
    for seed in (1, 2):
        assert main(["fit", "--config=ratings", *options, f"--seed_everything={seed}", "--trainer.callbacks=[]"]) == 0
        assert f"seed_everything: {seed}" in Path("runs/ratings/config.yaml").read_text()
