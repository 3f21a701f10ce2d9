"""The promise of the whole path: a request with raw values gets the trained module's logit."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_mp.export.encoded_rows import EncodedRows, module_logits
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.raw_rows import encode_rows
from lightning_mp.serve.columns import MISSING
from lightning_mp.serve.scorer import Scorer


def row_of(raw, index: int) -> dict:
    """A row as a client would send it: what is missing is left out or null."""
    row = {name: values[index] for name, values in raw.items()}
    row = {name: value if isinstance(value, str) else value.item() for name, value in row.items()}
    missing = {name for name, value in row.items() if value != value or value in (MISSING["BYTES"], MISSING["INT64"])}
    return {name: None if name in missing else value for name, value in row.items() if name not in missing or index % 2}


@pytest.mark.parametrize("precision", ["fp32", "fp16-storage"])
def test_raw_values_sent_to_a_server_get_the_trained_module_s_logit(running, new_client, tmp_path, precision):
    shop = runpy.run_path(str(Path(__file__).parents[1] / "export" / "conftest.py"))["make_store"](tmp_path / "store")
    network = shop.network()
    bundle = export_bundle(network, tmp_path / "click", store=shop.store, precision=precision)
    if precision == "fp16-storage":
        with torch.no_grad():
            for table in network.embedding.tables:
                table.weight.copy_(table.weight.half())
    expected = module_logits(network, EncodedRows(*encode_rows(shop.schema, shop.vocabularies, shop.raw)))
    rows = [row_of(shop.raw, index) for index in range(len(expected))]
    rows[0] |= {"user": "nobody before", "item": 1, "brand": "\u202e\x00"}
    strange = {name: values[:1].copy() for name, values in shop.raw.items()} | {
        "user": np.array(["x"], dtype=object),
        "item": np.array([1]),
        "brand": np.array(["y"], dtype=object),
    }
    expected[0] = module_logits(network, EncodedRows(*encode_rows(shop.schema, shop.vocabularies, strange)))[0]
    client = new_client(running(scorer=Scorer.open(bundle.path)))
    status, answer = client.ask("POST", "/score", {"rows": rows})
    assert status == 200
    np.testing.assert_allclose(answer["logits"], expected, atol=1e-5)
    np.testing.assert_allclose(answer["scores"], 1 / (1 + np.exp(-expected.astype(np.float64))), atol=1e-6)
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": [len(rows), 1],
            "data": [row.get(spec.name) for row in rows],
        }
        for spec in bundle.manifest.inputs
    ]
    status, tensors = client.ask("POST", "/v2/models/click/infer", {"inputs": inputs})
    assert status == 200
    assert tensors["outputs"][0]["data"] == answer["logits"]
    assert [answer["unknown"][0], answer["missing"][0]] == [["user", "item", "brand"], names_missing(rows[0], bundle)]
    for row, unknown, missing in zip(rows, answer["unknown"], answer["missing"], strict=True):
        strangers = {
            name
            for name, words in shop.vocabularies.items()
            if row.get(name) is not None and row[name] not in words.entries.tolist()
        }
        assert (set(unknown), missing) == (strangers, names_missing(row, bundle))
    asked = {"inputs": inputs, "outputs": [{"name": "unknown"}, {"name": "score"}, {"name": "missing"}]}
    status, tensors = client.ask("POST", "/v2/models/click/infer", asked)
    assert status == 200
    names = [spec.name for spec in bundle.manifest.inputs]
    for tensor, said in ((tensors["outputs"][0], answer["unknown"]), (tensors["outputs"][2], answer["missing"])):
        assert (tensor["datatype"], tensor["shape"]) == ("BOOL", [len(rows), len(names)])
        assert tensor["data"] == [name in row for row in said for name in names]


def names_missing(row: dict, bundle) -> list[str]:
    return [spec.name for spec in bundle.manifest.inputs if row.get(spec.name) is None]
