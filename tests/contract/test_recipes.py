"""What every recipe promises: it is short, listed, runs from log to bundle, and the bundle answers as the model does.

A new recipe needs an entry in `SMALL`: how to run it on a log that is small enough for a test.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lightning.pytorch as pl  # its log handler keeps the stderr of its import, so not inside a test
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from lightning_mp import FeatureStore, MultiTaskModule, NextItemModule, RankingModule, RetrievalModule
from lightning_mp.bundle import Bundle
from lightning_mp.cli.main import main
from lightning_mp.export.raw_lists import encode_lists
from lightning_mp.export.raw_rows import decode_rows, encode_rows
from lightning_mp.hardware.session import open_session

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
QUICK = [
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=4",
    "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]


def quickstart(folder: Path) -> list[str]:
    return [
        "--data.synthetic.impressions=6000",
        "--data.synthetic.users=120",
        "--data.synthetic.items=40",
        "--data.batch_size=512",
    ]


def ranking_float16(folder: Path) -> list[str]:
    return [*quickstart(folder), "--data.batch_size=64"]


def multi_task(folder: Path) -> list[str]:
    return [*quickstart(folder), "--data.synthetic.impressions=12000"]  # enough for an order in every part


def clicks_alone(folder: Path) -> list[str]:
    return ["--data.synthetic.impressions=20000", "--data.synthetic.users=120", "--data.synthetic.items=40"]


def ratings(folder: Path) -> list[str]:
    draw = np.random.default_rng()
    rows, films = 3000, draw.normal(3.5, 0.6, 60)
    film = draw.integers(60, size=rows)
    table = {
        "userId": np.sort(draw.integers(1, 50, rows)),  # users come and go, so that later ones are new
        "movieId": film + 1,
        "rating": np.clip(np.round(2 * draw.normal(films[film], 0.8)) / 2, 0.5, 5.0),
        "timestamp": 1_000_000_000 + np.cumsum(draw.integers(1, 40_000, rows)),
    }
    pa.csv.write_csv(pa.table(table), folder / "ratings.csv")
    return [f"--data.path={folder / 'ratings.csv'}"]


def event_log(folder: Path) -> list[str]:
    draw = np.random.default_rng()
    rows = 3000
    product, user = draw.integers(80, size=rows), draw.integers(60, size=rows)
    kind = draw.choice(["view", "cart", "purchase", "remove_from_cart"], rows, p=[0.85, 0.08, 0.05, 0.02])
    start = datetime(2019, 10, 1, tzinfo=UTC)
    moments = [start + timedelta(seconds=int(s)) for s in np.cumsum(draw.integers(1, 90, rows))]
    names = np.array(["", "acme", "bolt", "cube"], dtype=object)
    table = {
        "event_time": [f"{moment:%Y-%m-%d %H:%M:%S} UTC" for moment in moments],
        "event_type": kind,
        "product_id": product + 1000,
        "category_id": product // 8 + 2_000_000_000_000_000_000,
        "category_code": np.where(product % 3 == 0, "", np.char.add("shop.aisle", (product // 8).astype(str))),
        "brand": names[product % 4],
        "price": np.round(np.exp(draw.normal(4.0, 1.0, 80))[product], 2),
        "user_id": user + 500,
        "user_session": [f"s{u}" for u in user],
    }
    pa.csv.write_csv(pa.table(table), folder / "events.csv", pa.csv.WriteOptions(quoting_style="needed"))
    return [f"--data.path={folder / 'events.csv'}"]


def retail_ranking(folder: Path) -> list[str]:
    draw = np.random.default_rng()
    rows, households, products = 3000, 40, 80
    seconds = np.sort(draw.integers(364 * 86_400, size=rows))
    moments = np.datetime64("2017-01-01", "ns") + seconds.astype("timedelta64[s]")
    household, product = draw.integers(households, size=rows), draw.integers(products, size=rows)
    transactions = {
        "household_id": household.astype(str),
        "store_id": (household % 5).astype(str),
        "basket_id": np.char.add(household.astype(str), np.char.add("-", (seconds // 86_400).astype(str))),
        "product_id": product.astype(str),
        "transaction_timestamp": pa.array(moments, pa.timestamp("ns", tz="UTC")),
    }
    index = np.arange(products)
    items = {
        "product_id": index.astype(str),
        "department": np.char.add("d", (index % 6).astype(str)),
        "product_category": [f"c{i % 12}" if i % 9 else None for i in index],
        "brand": np.where(index % 3 == 0, "Private", "National"),
    }
    users = {
        "household_id": np.arange(households - 10).astype(str),  # most households said nothing of themselves
        "age": np.where(np.arange(households - 10) % 2, "25-34", "65+"),
        "income": np.char.add("level", (np.arange(households - 10) % 3).astype(str)),
    }
    for name, table in (("transactions", transactions), ("products", items), ("demographics", users)):
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    return [
        f"--data.path={folder / 'transactions.parquet'}",
        f"--data.items.path={folder / 'products.parquet'}",
        f"--data.users.path={folder / 'demographics.parquet'}",
    ]


SMALL: dict[str, Callable[[Path], list[str]]] = {
    "event_log": event_log,
    "multi_task": multi_task,
    "next_item": clicks_alone,
    "quickstart": quickstart,
    "ranking_float16": ranking_float16,
    "ratings": ratings,
    "retail_ranking": retail_ranking,
    "retrieval": clicks_alone,
}
PRINTED = {
    "multi_task": ("task `order`", "│ model", "│ popularity", "│ best possible"),
    "next_item": ("│ model", "│ popularity", "│ Markov", "checkpoint: "),
    "retrieval": ("│ model", "│ popularity", "│ EASE"),
}


def table_of_readme() -> list[list[str]]:
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| [")]
    assert cells, "recipes/README.md has no table"
    return cells


def test_every_recipe_has_a_row_and_every_row_a_recipe():
    names = [re.fullmatch(r"\[(\w+)\]\((\w+)\.yaml\)", row[0]) for row in table_of_readme()]
    assert [name and name[1] for name in names] == [name and name[2] for name in names]
    assert sorted(name[1] for name in names if name) == RECIPES


def test_every_row_gives_minutes_and_memory_and_the_launch_line_of_its_recipe():
    for row in table_of_readme():
        name, _, _, minutes, memory, command = row
        name = name[1 : name.index("]")]
        assert re.fullmatch(r"\d+(\.\d+)?", minutes), row
        assert re.fullmatch(r"\d+(\.\d+)? GB", memory), row
        header = " ".join(line.strip("# ") for line in (FOLDER / f"{name}.yaml").read_text().splitlines()[:12])
        assert command.strip("`") in " ".join(header.split()), f"{name}: the table's command is not its launch line"


def test_every_recipe_has_a_small_run():
    assert sorted(SMALL) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_says_how_it_is_used(name):
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    for word in ("# Needs:", "# Launch:", "# Override:"):
        assert word in text
    assert f"lightning-mp fit --config recipes/{name}.yaml" in text
    recipe = yaml.safe_load(text)
    path = recipe["data"]["init_args"].get("path")
    assert path in (None, "synthetic"), "only the synthetic log has a path of its own"
    kept = [entry for entry in recipe["trainer"]["callbacks"] if entry["class_path"].endswith(".ModelCheckpoint")]
    assert [bool(entry["init_args"].get("monitor")) for entry in kept] == [True]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_from_the_log_to_a_bundle_that_answers_as_the_model(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", f"--config={name}", *SMALL[name](tmp_path), *QUICK]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    for line in PRINTED.get(name, ("│ model", "│ popularity", "│ running user + item mean")):
        assert line in printed
    assert ("best possible" in printed) == (name in ("multi_task", "quickstart", "ranking_float16"))
    assert f"lightning-mp serve runs/{name}/bundle" in printed
    require_the_same_answers(Path("runs") / name)
    if name == "ranking_float16":
        require_the_page(Path("runs") / name / "report")


@pytest.mark.parametrize(("name", "log"), [("quickstart", "synthetic"), ("ratings", "ratings.csv")])
def test_raw_rows_of_the_log_itself_give_the_models_logit(name, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", f"--config={name}", *SMALL[name](tmp_path), *QUICK]) == 0
    run = Path("runs") / name
    table = pa.csv.read_csv(log) if name == "ratings" else pq.read_table(run / "store-log.parquet")
    part = FeatureStore(run / "store").load("test")
    rows = table.take(pa.array(part.row[:200]))
    moments = [datetime.fromtimestamp(us / 1e6, UTC) for us in part.time[:200]]
    calendar = {"hour": [m.hour for m in moments], "weekday": [m.weekday() for m in moments]}
    bundle = Bundle.open(run / "bundle")
    raw = {}
    for entry in bundle.manifest.inputs:
        values = calendar.get(entry.name) or rows[entry.name].to_pylist()
        if entry.datatype == "BYTES":
            raw[entry.name] = np.array(["" if value is None else str(value) for value in values], dtype=object)
        else:
            raw[entry.name] = np.array(values, dtype=np.int64 if entry.datatype == "INT64" else np.float64)
    expected = logits(deployed(run, bundle), np.asarray(part.ids[:200]), np.asarray(part.dense[:200]), {})
    (logit,) = open_session(bundle.pipeline, target="cpu").run(["logit"], raw)
    np.testing.assert_allclose(logit, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("file", ["ratings.csv"])
def test_the_ratings_recipe_beats_popularity_on_real_ratings(file, shared, tmp_path, monkeypatch, capsys):
    log = shared / "data" / "movielens_small" / file
    if not log.is_file():
        pytest.skip(f"no real data: `{log}` is absent")
    monkeypatch.chdir(tmp_path)
    options = [
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
    ]
    assert main(["fit", "--config=ratings", f"--data.path={log}", *options]) == 0
    printed = capsys.readouterr().out
    area = {m[1].strip(): float(m[2]) for m in re.finditer(r"│ ([^│]+?)\s*│\s*(0\.\d+) │", printed)}
    assert area["model"] > 0.6
    assert area["model"] > area["popularity"] + 0.05
    expected = {"popularity": 0.57, "item mean": 0.65, "user + item mean": 0.68, "running user + item mean": 0.80}
    for name, value in expected.items():
        assert area[name] == pytest.approx(value, abs=0.015)
    require_the_same_answers(Path("runs/ratings"))


def require_the_same_answers(run: Path) -> None:
    """The pipeline on raw values, against the checkpoint's module on what the store would hold of them."""
    bundle, store = Bundle.open(run / "bundle"), FeatureStore(run / "store")
    schema, part = bundle.manifest.schema, store.load("test")
    lists = schema.of_kind("sequence")
    vocabularies = {feature.name: store.vocabulary(feature.name) for feature in (*schema.ids, *lists)}
    rows = slice(0, 500)
    histories = {"history": np.asarray(part.history[rows], dtype=np.int64)} if lists else {}
    raw = decode_rows(schema, vocabularies, np.asarray(part.ids[rows]), np.asarray(part.dense[rows]), lists=histories)
    ids, dense = encode_rows(schema, vocabularies, raw)
    module = deployed(run, bundle)
    expected = logits(module, ids, dense, encode_lists(schema, vocabularies, raw))
    logit, score = open_session(bundle.pipeline, target="cpu").run(["logit", "score"], raw)
    np.testing.assert_allclose(logit, expected, rtol=0, atol=1e-5)
    wanted = module.score(torch.from_numpy(expected).double()).numpy()
    np.testing.assert_allclose(score, wanted, rtol=0, atol=1e-5)


def require_the_page(folder: Path) -> None:
    """The seven rules, as the page of the run shows them."""
    page = json.loads((folder / "precision_report.json").read_text(encoding="utf-8"))
    assert [found for found in page["findings"] if found["severity"] == "error"] == []
    assert page["data"]["audit"]["score"] >= 80
    assert {feature["stored"] for feature in page["data"]["features"] if feature["name"] in ("age", "price")} == {
        "float16"
    }
    rates = page["learning_rate"]["lr-AdamW"]["values"]
    assert rates[0] == pytest.approx(1e-6)
    assert max(rates) <= 2e-4
    assert page["gradients"]["limits"] == {"fp32_threshold": 10.0}
    assert page["export"]["parity"]["logit.p99"] < 5e-3
    assert page["evaluations"]["test"]["test_auc"] > 0
    precision, kept = page["run"]["precision"], page["float32"]["kept_by"]
    assert kept == "KeepInFP32"
    if precision != "32-true":
        assert any(layer["layer"] == "network.head" and layer["verified"] for layer in page["float32"]["layers"])


def deployed(run: Path, bundle: Bundle) -> pl.LightningModule:
    """The best checkpoint's module in float32, its embedding tables rounded where the bundle says so."""
    (checkpoint,) = run.glob("version_0/checkpoints/*.ckpt")
    found = torch.load(checkpoint, weights_only=True, map_location="meta")["lightning_mp"]["module"]
    kind = {
        f"{m.__module__}.{m.__qualname__}": m for m in (MultiTaskModule, NextItemModule, RankingModule, RetrievalModule)
    }[found]
    module = copy.deepcopy(kind.load_from_checkpoint(checkpoint, map_location="cpu")).eval()
    for name, verdict in bundle.manifest.precision["tables"].items():
        if verdict == "float16":
            weight = module.get_submodule(name).weight
            weight.data = weight.data.half().float()
    return module


def logits(module: pl.LightningModule, ids: np.ndarray, dense: np.ndarray, lists: dict[str, np.ndarray]) -> np.ndarray:
    batch = {"ids": torch.from_numpy(ids), "dense": torch.from_numpy(dense).float()}
    batch = {name: tensor for name, tensor in batch.items() if tensor.shape[1]}
    if lists:  # an item after a history, which is all that the network takes
        batch |= {name: torch.from_numpy(values) for name, values in lists.items()} | {"target": batch["ids"][:, 0]}
    with torch.no_grad():
        return module(batch).numpy()
