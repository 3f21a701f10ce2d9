"""What a recipe declares about a log, built from YAML as a command builds it."""

# ruff: noqa: E501  tables of cases read better in one line each
from __future__ import annotations

import pytest
from jsonargparse import ArgumentParser

from lightning_mp.data.columns import Columns, ConstantEvent, EventFlags
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel, Label, PreferenceLabel, ValueLabel
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.errors import ConfigurationError


class Section:
    """A data section with the types of `prepare`."""

    def __init__(
        self,
        path: str,
        *,
        columns: Columns,
        label: Label,
        features: list[FeatureSpec],
        event_map: dict[str, str | None] | None = None,
        split: TimeSplit | None = None,
        csv: CsvDialect | None = None,
    ) -> None:
        self.columns, self.label, self.features = columns, label, features
        self.event_map, self.split, self.csv = event_map, split, csv


def section(tmp_path, event, label, rest=""):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Section, "data")
    (tmp_path / "data.yaml").write_text(
        f"path: log.csv\ncolumns: {{user: u, item: i, time: t, event: {event}, time_zone: Europe/Berlin}}\nlabel: {label}\n"
        "features:\n  - {name: user, kind: id, role: user}\n  - {name: hour, kind: categorical, of: hour}\n"
        f"  - {{name: price, kind: numeric, transform: log1p_zscore, missing: constant, missing_value: 0}}\n{rest}"
    )
    config = parser.parse_args([f"--data={tmp_path / 'data.yaml'}"])
    return parser.instantiate(config).data


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("event_type", "event_type"),
        ("{constant: order}", ConstantEvent(constant="order")),
        ("{flags: {click: clicked, order: bought}}", EventFlags(flags={"click": "clicked", "order": "bought"})),
    ],
)
@pytest.mark.parametrize(
    ("label_text", "label"),
    [
        ("{event: click}", EventLabel(event="click")),
        ("{event: click, per: view, within: 7d}", EventLabel(event="click", per="view", within="7d")),
        ("{value: rating, at_least: 4}", ValueLabel(value="rating", at_least=4)),
        ("{preference: {order: 1.0, cart: 0.5}}", PreferenceLabel(preference={"order": 1.0, "cart": 0.5})),
    ],
)
def test_yaml(tmp_path, text, event, label_text, label):
    rest = "event_map: {purchase: order, search: null}\nsplit: {at: '2017-11-01'}\ncsv: {delimiter: ;, missing: [NA]}\n"
    data = section(tmp_path, text, label_text, rest)
    assert data.columns == Columns(user="u", item="i", time="t", event=event, time_zone="Europe/Berlin")
    assert data.label == label
    assert data.event_map == {"purchase": "order", "search": None}
    assert data.split == TimeSplit(at="2017-11-01")
    assert data.csv == CsvDialect(delimiter=";", missing=("NA",))
    assert data.features[2] == FeatureSpec(
        name="price", kind="numeric", transform="log1p_zscore", missing="constant", missing_value=0
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ConstantEvent(constant="buy"), "`columns.event.constant`: 'buy' is not a kind of event; there are impr"),
        (lambda: EventFlags(flags={"clicked": "c"}), "`columns.event.flags`: 'clicked' is not a kind of event"),
        (lambda: EventFlags(flags={}), "names no column"),
        (lambda: Columns(user="u", item="i", time="t", event="e", time_zone="Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (lambda: Columns(user="u", item="i", time="t", event="e", earliest="soon"), "`columns.earliest` must be an ISO date"),
        (lambda: EventLabel(event="buy"), "`label.event`: 'buy' is not a kind of event"),
        (lambda: EventLabel(event="click", within="a week"), "`label.within` must be a whole number and s, min, h or d"),
        (lambda: EventLabel(event="click", per="click"), "`label.per` and `label.event` are both `click`"),
        (lambda: PreferenceLabel(preference={"order": 0.0}), "needs weights from 0 on and one above 0"),
        (lambda: PreferenceLabel(preference={"order": -1.0, "cart": 1.0}), "needs weights from 0 on"),
        (lambda: FeatureSpec(name="", kind="numeric"), "a feature of kind `numeric` in `features` has the empty name ''"),
        (lambda: FeatureSpec(name=" ", kind="id", role="user"), "in `features` has the empty name ' '"),
        (lambda: FeatureSpec(name="x", kind="id"), "feature `x`: an `id` needs role `user` or `item`"),
        (lambda: FeatureSpec(name="x", kind="numeric", of="hour"), "feature `x`: `of` needs kind `categorical`"),
        (lambda: FeatureSpec(name="x", kind="categorical", missing="mean"), "`missing` must be one of unknown, mode, refuse"),
        (lambda: FeatureSpec(name="x", kind="numeric", missing="constant"), "`missing: constant` needs `missing_value`"),
        (lambda: FeatureSpec(name="x", kind="categorical", transform="zscore"), "`transform` is for kind `numeric`"),
        (lambda: FeatureSpec(name="x", kind="categorical", dtype="float16"), "ids and categories are int32"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_once(make, text):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert text in caught.value.problem
