"""Chance of a click, given what the log shows of an impression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.synthetic.visiting_time import DAY_US
from lightning_mp.data.synthetic.world import FACTORS, World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def click_log_odds(
    world: World, *, user: Ints, item: Ints, time: Ints, position: Ints, device: Ints, promotion: Floats
) -> Floats:
    """Log-odds of a click but for the constant that brings the mean to 5 %.

    Taste is a product of two vectors of four numbers: a user's stands near its segment's, an item's near its
    category's. To it come what an item is liked for by all (category, brand, itself), spend against price, age
    by category, the segment's hours, the device, the place on the page and the promotion.

    Args:
        world: Users and items.
        user: (N,) indices of users.
        item: (N,) indices of items.
        time: (N,) UTC microseconds; only the hour of the day counts.
        position: (N,) places on the page, from 1.
        device: (N,) indices into `DEVICES`.
        promotion: (N,) strength in [0, 1].

    Returns:
        (N,) float64.
    """
    segment, category = world.segment[user], world.category[item]
    taste = np.einsum("nf,nf->n", world.user_vector[user], world.item_vector[item]) / np.sqrt(FACTORS)
    by_price = world.spend_level[user] * world.price_level[item]
    by_age = (world.age[user] - 41) / 14 * world.age_slope[category]
    hour = time // (DAY_US // 24) % 24
    by_hour = np.cos((hour - world.segment_hour[segment]) * (2 * np.pi / 24))
    log_odds = world.user_effect[user] + world.item_effect[item] + world.device_effect[device]
    log_odds += 0.85 * taste + 0.45 * by_price + by_age + 0.4 * by_hour
    log_odds += 1.5 * promotion - 0.8 * np.log(position)
    return np.asarray(log_odds, dtype=np.float64)
