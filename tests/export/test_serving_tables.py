"""Latest features by key, from the store to a request that carries keys alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.bundle import Bundle
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import BundleError
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.raw_rows import decode_rows
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.serve.latest_features import LatestFeatures
from lightning_mp.serve.scorer import Scorer


@pytest.fixture(scope="module")
def keyed(prepared, tmp_path_factory) -> FeatureStore:
    """The shop's store with users, items and times."""
    rng, rows = np.random.default_rng(), len(prepared.raw["user"])
    users, user = np.unique(prepared.raw["user"], return_inverse=True)
    items, item = np.unique(prepared.raw["item"], return_inverse=True)
    columns = {name: pa.array(words.encode(prepared.raw[name])) for name, words in prepared.vocabularies.items()}
    for feature in prepared.schema.dense:
        from lightning_mp.data import transforms

        values = np.where(np.isnan(prepared.raw[feature.name]), feature.missing_value, prepared.raw[feature.name])
        columns[feature.name] = pa.array(transforms.apply(feature.transform, values).reshape(rows))
    columns["clicked"] = pa.array((rng.random(rows) < 0.3).astype(np.float32))
    columns |= {"@row": pa.array(np.arange(rows)), "@user": pa.array(user), "@item": pa.array(item),
                "@time": pa.array(rng.permutation(rows) * 1_000_000)}  # fmt: skip
    table, cut = pa.table(columns), rows // 2
    store = FeatureStore(tmp_path_factory.mktemp("keyed") / "store")
    store.write({"train": table[:cut], "test": table[cut:]}, schema=prepared.schema, users=pa.array(users.tolist()),
                items=pa.array(items), vocabularies=prepared.vocabularies)  # fmt: skip
    return store


@pytest.fixture(scope="module")
def tabled(keyed, tmp_path_factory) -> Bundle:
    network = DCNv2(keyed.schema, embedding_dim=4, hidden=(8,)).eval()
    return export_bundle(network, tmp_path_factory.mktemp("tabled") / "bundle", store=keyed)


def brute_force(store: FeatureStore, role: str) -> dict[object, tuple[int, dict[str, object]]]:
    """The last row of each key, found by a loop over all rows."""
    names = [f.name for f in store.schema.features if f.role == role and f.kind != "id"]
    words = {feature.name: store.vocabulary(feature.name) for feature in store.schema.ids}
    found: dict[object, tuple[int, dict[str, object]]] = {}
    keys = (store.users() if role == "user" else store.items()).to_pylist()
    for split in ("train", "test"):
        table = store.load(split)
        raw = decode_rows(store.schema, words, table.ids, table.dense)
        for row, (code, time) in enumerate(zip(getattr(table, role), table.time, strict=True)):
            if keys[code] not in found or time > found[keys[code]][0]:
                found[keys[code]] = (int(time), {name: raw[name][row] for name in names})
    return found


def test_every_key_has_the_values_and_the_time_of_its_last_row(keyed, tabled):
    assert {"tables/user.npz", "tables/item.npz"} <= set(tabled.manifest.files)
    latest = LatestFeatures(tabled)
    for role in ("user", "item"):
        truth = brute_force(keyed, role)
        for key, (time, values) in truth.items():
            assert latest.as_of(role, key) == time
            (row,) = latest.complete([{role: key}])
            assert {name: row[name] for name in values} == values
    assert latest.as_of("user", "nobody") is None


def test_a_request_of_keys_alone_gets_what_the_latest_features_give(keyed, tabled):
    scorer = Scorer(tabled)
    user, item = keyed.users()[3].as_py(), keyed.items()[5].as_py()
    spoken = {"dwell": 12.0, "rank": 3.0}
    known = {**brute_force(keyed, "user")[user][1], **brute_force(keyed, "item")[item][1]}
    known = {name: value.item() if hasattr(value, "item") else value for name, value in known.items()}
    rows = [{"user": user, "item": item, **spoken}, {"user": user, "item": item, **spoken, **known}]
    first, second = scorer.score(rows).logit
    assert first == second
    (overridden,) = scorer.completed([{"user": user, "age": 99.0, "price": None}])
    assert (overridden["age"], overridden["price"]) == (99.0, None)
    assert scorer.completed([{"user": "nobody"}, 3, {"user": ["u1"]}]) == [{"user": "nobody"}, 3, {"user": ["u1"]}]


def test_a_store_without_keys_gives_no_tables(bundle):
    assert not [name for name in bundle.manifest.files if name.startswith("tables/")]
    assert len(LatestFeatures(bundle)) == 0


def test_an_altered_table_is_found_and_one_that_is_no_table_named(tabled, tmp_path):
    import shutil

    folder = shutil.copytree(tabled.path, tmp_path / "copied")
    (folder / "tables" / "user.npz").write_bytes(b"not a table")
    with pytest.raises(BundleError, match=r"user\.npz` has 11 bytes"):
        Bundle.open(folder)
    with pytest.raises(BundleError, match=r"user\.npz` cannot be read"):
        LatestFeatures(Bundle(folder, tabled.manifest))
