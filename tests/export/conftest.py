from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from lightning_mp.bundle import Bundle
from lightning_mp.data import transforms
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import Feature, FeatureSchema


@dataclass(frozen=True)
class Prepared:
    """A store of a small shop, and the raw values it was made of."""

    store: FeatureStore
    schema: FeatureSchema
    vocabularies: dict[str, Vocabulary]
    raw: dict[str, np.ndarray]

    def network(self, **settings: object) -> DCNv2:
        """A network whose tables and layers are far from their start, so that a swapped input shows."""
        network = DCNv2(self.schema, **{"embedding_dim": 4, "hidden": (16, 8), **settings})  # type: ignore[arg-type]
        with torch.no_grad():
            for table in network.embedding.tables:
                table.weight.normal_(std=0.5)
        return network.eval()


def _numeric(name: str, kind: str, values: np.ndarray, dtype: str, role: str) -> tuple[Feature, np.ndarray]:
    known = values[~np.isnan(values)]
    fitted = transforms.fit(kind, known)  # type: ignore[arg-type]
    mean = float(known.mean())
    stored = transforms.apply(fitted, np.where(np.isnan(values), mean, values))
    feature = Feature(name=name, kind="numeric", role=role, source_dtype="double", stored_dtype=dtype,  # type: ignore[arg-type]
                      transform=fitted, missing="mean", missing_value=mean)  # fmt: skip
    return feature, stored


def _indexed(name: str, kind: str, words: Vocabulary, role: str) -> Feature:
    return Feature(name=name, kind=kind, role=role, source_dtype="string" if words.is_text else "int64",  # type: ignore[arg-type]
                   stored_dtype="int32", vocabulary_size=words.size, vocabulary_digest=words.digest)  # fmt: skip


def make_store(folder: Path, *, rows: int = 900, seed: int | None = None) -> Prepared:
    rng = np.random.default_rng(seed)
    raw = {
        "user": np.array([f"u{n}" for n in rng.integers(0, 80, rows)], dtype=object),
        "item": rng.integers(-40, 40, rows) * 1_000_003,
        "brand": rng.choice(np.array(["acme", "zeta", "Ü-brand", "", "acme "], dtype=object), rows),
        "price": np.where(rng.random(rows) < 0.1, np.nan, rng.lognormal(3, 2, rows)),
        "dwell": rng.standard_t(1.5, rows) * 1000,
        "age": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(40, 12, rows)),
        "rank": rng.integers(1, 50, rows).astype(np.float64),
    }
    words = {name: Vocabulary.fit(raw[name][: rows // 2], min_count=1) for name in ("user", "item", "brand")}
    columns = {name: pa.array(words[name].encode(raw[name])) for name in words}
    features = [
        _indexed("user", "id", words["user"], "user"),
        _indexed("item", "id", words["item"], "item"),
        _indexed("brand", "categorical", words["brand"], "item"),
    ]
    for name, kind, dtype, role in (
        ("price", "log1p_zscore", "float16", "item"),
        ("dwell", "signed_log", "float32", "context"),
        ("age", "zscore", "float16", "user"),
        ("rank", "log1p", "float32", "context"),
    ):
        feature, stored = _numeric(name, kind, raw[name], dtype, role)
        features.append(feature)
        columns[name] = pa.array(stored)
    features.append(Feature(name="clicked", kind="numeric", role="label", source_dtype="bool", stored_dtype="float32"))
    columns["clicked"] = pa.array((rng.random(rows) < 0.2).astype(np.float32))
    columns["@row"] = pa.array(np.arange(rows))
    schema = FeatureSchema(features=tuple(features))
    table, cut = pa.table(columns), int(rows * 0.6)
    store = FeatureStore(folder)
    store.write({"train": table[:cut], "test": table[cut:]}, schema=schema, vocabularies=words)
    return Prepared(store, store.schema, words, raw)


class Crosses(nn.Module):
    """Cross layers as many projects write them: no thought of float16."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, first):
        x = first
        for layer in self.layers:
            x = first * layer(x) + x
        return x


class PlainDCN(nn.Module):
    """Somebody else's DCN; `scale` multiplies its dense inputs."""

    def __init__(self, schema: FeatureSchema, *, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.schema, self.scale = schema, scale
        self.tables = nn.ModuleList(nn.Embedding(f.vocabulary_size or 1, 4) for f in schema.ids)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)
        width = 4 * len(schema.ids) + schema.dense_width
        self.cross = Crosses(width, 3)
        self.deep = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Linear(width + 8, 1)

    def forward(self, batch):
        looked_up = [table(ids) for table, ids in zip(self.tables, batch["ids"].unbind(1), strict=True)]
        x = torch.cat([*looked_up, batch["dense"] * self.scale], dim=1)
        return self.head(torch.cat([self.cross(x), self.deep(x)], dim=1)).squeeze(1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return make_store(tmp_path_factory.mktemp("store") / "shop")


@pytest.fixture(scope="session")
def network(prepared: Prepared) -> DCNv2:
    return prepared.network()


@pytest.fixture(scope="session")
def bundle(prepared: Prepared, network: DCNv2, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An exported float32 bundle; read only."""
    return export_bundle(network, tmp_path_factory.mktemp("bundle") / "fp32", store=prepared.store)


@pytest.fixture(scope="session")
def plain_dcn() -> type[PlainDCN]:
    return PlainDCN


@pytest.fixture
def copied(bundle: Bundle, tmp_path: Path) -> Path:
    """A copy of the bundle's folder, to be damaged."""
    return Path(shutil.copytree(bundle.path, tmp_path / "copied"))
