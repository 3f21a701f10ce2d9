"""Put drawn impressions or events down as the log's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lightning_mp.data.synthetic.settings import KEY, SyntheticLog
from lightning_mp.data.synthetic.world import DEPARTMENTS, DEVICES, SEGMENTS, World

EVENTS = ("impression", "click", "cart", "order")
FINGERPRINT = KEY + b".fingerprint"
# As large as real shops have them: none of these survives a float32, the last not even a float64.
FIRST_USER, FIRST_ITEM, FIRST_CATEGORY = 500_000_000, 100_000_000, 2_053_013_552_000_000_001


def log_schema(settings: SyntheticLog, fingerprint: Sequence[float]) -> pa.Schema:
    """Arrow schema of the log, its settings and the draw's fingerprint in its metadata."""
    columns: list[tuple[str, Any]] = [
        ("user_id", pa.int64()), ("item_id", pa.int64()), ("event_time", pa.timestamp("us", "UTC")),
        ("session_id", pa.int64()), ("segment", pa.string()), ("age", pa.int64()), ("spend", pa.float64()),
        ("device", pa.string()), ("position", pa.int64()), ("category_id", pa.int64()),
        ("category_code", pa.string()), ("brand", pa.string()), ("price", pa.float64()), ("promotion", pa.float64()),
    ]  # fmt: skip
    if settings.form == "long":
        columns.append(("event_type", pa.string()))
    else:
        columns += [("click", pa.bool_()), ("cart", pa.bool_()), ("order", pa.bool_())]
    columns.append(("dwell_seconds", pa.float64()))
    if settings.faults.future_leaks:
        columns += [("user_click_rate", pa.float64()), ("page_depth", pa.float64())]
    numbers = " ".join(f"{value:.12e}" for value in fingerprint)
    return pa.schema(columns, metadata={KEY: settings.to_json().encode(), FINGERPRINT: numbers.encode()})


def record(
    world: World, drawn: Mapping[str, NDArray[Any]], click_rates: NDArray[np.float64] | None, schema: pa.Schema
) -> pa.Table:
    """Columns of the log for drawn impressions or events.

    Args:
        world: Users and items.
        drawn: The fields of `Impressions`, in the order of the log; in the long form with `event`, 0 to 3.
        click_rates: (users,) click rate over the whole log, or `None` where no leak is asked for.
        schema: What `log_schema` gave.

    Returns:
        A table of that schema.
    """
    user, item, faults = drawn["user"], drawn["item"], world.settings.faults
    category = world.category[item]
    spend = faults.record_spend(world.spend, float(world.spend.min()), float(world.spend.max()))
    codes = [f"{DEPARTMENTS[i % len(DEPARTMENTS)]}.{i:03d}" for i in range(int(world.category.max()) + 1)]
    brands = [f"brand_{i:03d}" for i in range(int(world.brand.max()) + 1)]
    event = drawn.get("event")
    dwelt = drawn["click"] if event is None else event == EVENTS.index("click")
    columns: dict[str, Any] = {
        "user_id": user + FIRST_USER,
        "item_id": item + FIRST_ITEM,
        "event_time": pa.array(drawn["time"]).cast(pa.timestamp("us", "UTC")),
        "session_id": drawn["session"],
        "segment": _named(SEGMENTS, world.segment[user]),
        "age": faults.record_age(world.age, world.lost_sign)[user],
        "spend": spend[user],
        "device": _named(DEVICES, drawn["device"]),
        "position": drawn["position"],
        "category_id": category + FIRST_CATEGORY,
        "category_code": _named(codes, category, world.category_code_known[category]),
        "brand": _named(brands, world.brand[item], world.brand_known[item]),
        "price": world.price[item],
        "promotion": faults.record_promotion(drawn["promotion"]),
        "dwell_seconds": pa.array(drawn["dwell"], mask=~dwelt),
        "click": drawn["click"],
        "cart": drawn["cart"],
        "order": drawn["order"],
    }
    if event is not None:
        columns["event_type"] = _named(EVENTS, event)
    if click_rates is not None:
        columns["user_click_rate"] = click_rates[user]
        columns["page_depth"] = np.round(np.where(drawn["click"], 3 + drawn["dwell"] ** 0.5, drawn["dwell"] ** 0.25), 2)
    return pa.table([pa.array(columns[name]) for name in schema.names], schema=schema)


def _named(names: tuple[str, ...] | list[str], index: NDArray[Any], known: NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.array(names).take(pa.array(index, mask=None if known is None else ~known))
