"""From a faulty log to a bundle with the advised transforms: a request with raw values gets the stored row's logit."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import torch

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.prepare import prepare
from lightning_mp.data.synthetic.faults import Faults
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.hardware.session import open_session
from lightning_mp.networks.dcn_v2 import DCNv2


def test_raw_values_are_scored_as_the_stored_rows_are(tmp_path):
    faults = Faults(negative_ages=True, exploding_spend=True, sparse_bursts=True)
    settings = SyntheticLog(impressions=3000, users=100, items=50, faults=faults)
    log = write_log(tmp_path / "log.parquet", settings)
    store = prepare(
        log,
        tmp_path / "store",
        columns=Columns(user="user_id", item="item_id", time="event_time", event=EventFlags(flags={"click": "click"})),
        label=EventLabel(event="click"),
        features=[
            FeatureSpec(name="user_id", kind="id", role="user"),
            FeatureSpec(name="age", kind="numeric", role="user", transform="auto"),
            FeatureSpec(name="spend", kind="numeric", role="user", transform="auto"),
            FeatureSpec(name="promotion", kind="numeric", transform="auto"),
            FeatureSpec(name="price", kind="numeric", role="item", transform="quantile"),
        ],
    )
    assert [f.transform.kind for f in store.schema.dense] == ["zscore", "log1p_zscore", "log1p_flag", "quantile"]
    network = DCNv2(store.schema, embedding_dim=4, hidden=(8,)).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(std=0.3)
    export_bundle(network, tmp_path / "bundle", store=store)
    table = store.load("test")
    batch = {"ids": torch.from_numpy(np.array(table.ids)), "dense": torch.from_numpy(np.array(table.dense))}
    with torch.inference_mode():
        expected = network(batch).numpy()
    rows = pq.read_table(log).take(table.row)
    raw = {name: rows[name].to_numpy().astype(np.float64) for name in ("age", "spend", "promotion", "price")}
    session = open_session(tmp_path / "bundle" / "pipeline.onnx")
    answered = session.run(["logit"], {"user_id": rows["user_id"].to_numpy(), **raw})[0]
    np.testing.assert_allclose(answered, expected, rtol=1e-4, atol=1e-4)
