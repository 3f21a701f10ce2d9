"""What a row leaves out is filled inside the graph as training filled it, as far as a graph can know."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.prepare import prepare
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.export.check import check_bundle
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.serve.scorer import Scorer
from lightning_mp.serve.unread import missing_names


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fills")
    rng = np.random.default_rng(7)
    lines = ["user,item,time,click,shelf,brand,price"]
    for row in range(600):
        shelf = rng.integers(0, 3)
        # `top` is the mode of all rows, `rare` that of shelf 2, and `once` is too rare for a row of its own
        brand = "once" if row == 5 else rng.choice(["top", "top", "other"]) if shelf < 2 else "rare"
        brand = "" if rng.random() < 0.2 and row != 5 else brand
        price = "" if rng.random() < 0.2 else f"{rng.lognormal():.3f}"
        moment = f"2026-01-{1 + row // 30:02d}T{row % 24:02d}:00:00Z"
        lines.append(
            f"u{rng.integers(20)},i{rng.integers(30)},{moment},{int(rng.random() < 0.3)},s{shelf},{brand},{price}"
        )
    (folder / "log.csv").write_text("\n".join(lines))
    store = prepare(
        folder / "log.csv",
        folder / "store",
        columns=Columns(user="user", item="item", time="time", event=EventFlags(flags={"click": "click"})),
        label=EventLabel(event="click"),
        features=[
            FeatureSpec(name="user", kind="id", role="user"),
            FeatureSpec(
                name="brand", kind="categorical", missing="mode", missing_by=("shelf",), indicator=True, min_count=2
            ),
            FeatureSpec(name="price", kind="numeric", missing="median", indicator=True),
        ],
        split=TimeSplit(),
    )
    network = DCNv2(store.schema, embedding_dim=4, hidden=(8,)).eval()
    with torch.no_grad():
        for table in network.embedding.tables:
            table.weight.normal_(std=0.5)
    bundle = export_bundle(network, folder / "bundle", store=store)
    assert check_bundle(bundle.path).ok
    return Scorer.open(bundle.path)


def test_a_missing_category_is_the_mode_of_all_rows_and_its_indicator_follows(scorer):
    inputs = {spec.name: spec for spec in scorer.inputs}
    assert (inputs["brand"].required, inputs["brand"].mode) == (False, "top")
    assert [inputs[name].derived_from for name in ("brand_missing", "price_missing")] == ["brand", "price"]
    row = {"user": "u1", "price": 2.0}
    left_out, null, told, denied, filled, given, other, rare = scorer.score([
        row,
        {**row, "brand": None},
        {**row, "brand_missing": 1},
        {**row, "brand_missing": 0},  # a brand that is not there is missing, whatever the row says
        {**row, "brand": "top", "brand_missing": 1},  # filled by the caller
        {**row, "brand": "top"},
        {**row, "brand": "other"},
        {**row, "brand": "rare", "brand_missing": 1},  # the caller knows the mode of the row's group
    ]).logit  # fmt: skip
    assert left_out == null == told == denied == filled
    assert len({left_out, given, other, rare}) == 4


def test_a_missing_number_is_the_median_and_its_indicator_follows(scorer):
    median = scorer.manifest.schema.feature("price").missing_value
    row = {"user": "u1", "brand": "top"}
    left_out, filled, given = scorer.score([
        row, {**row, "price": median, "price_missing": 1}, {**row, "price": median}
    ]).logit  # fmt: skip
    assert left_out == filled != given


def test_a_reply_counts_a_rare_value_as_unknown_and_no_indicator_as_missing(scorer):
    scores = scorer.score([{"user": "u1"}, {"user": "u1", "brand": "once"}])
    assert scores.unknown.tolist() == [[False, False], [False, True]]
    columns = {"user": ["u1"], "brand": [""], "brand_missing": [float("nan")], "price": [1.0], "price_missing": [1.0]}
    assert missing_names(scorer.inputs, columns, 1) == [["brand"]]
