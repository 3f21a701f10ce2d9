"""Who comes to the synthetic shop and what is sold there: drawn once from the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.synthetic.settings import SyntheticLog

SEGMENTS = ("bargain", "family", "gadget", "home", "style", "student")
DEVICES = ("app", "desktop", "mobile")
DEPARTMENTS = ("appliances", "apparel", "computers", "construction", "electronics", "furniture", "kids", "sport")
CATEGORY_CODE_MISSING = 0.33  # REES46 head: 33.0 % of the events
BRAND_MISSING = 0.16  # REES46 head: 14.2 % of the events; 18 % in another shop's report
CATEGORIES_WITHOUT_BRAND = 0.113  # REES46 head
POPULARITY_SLOPE = -0.65  # REES46 head: slope of log events over log rank, 1000 best products; best 10 % take 46 %
LOG_PRICE = (4.71, 1.08, 0.75)  # REES46 head, over products: mean, deviation between and within categories
PRICE_RANGE = (0.88, 2574.07)  # REES46 head
NEWCOMERS = 1 / 6
FACTORS = 4

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class World:
    """Users and items with what is seen of them, and the effects that nobody sees.

    Users stand in the order of their arrival class (`settled` of them are there from the start); items stand by
    category, so that one cumulative weight serves for a draw over all items and for one within a category.

    Attributes:
        settings: What it was drawn from.
    """

    settings: SyntheticLog
    segment: Ints
    age: Ints
    lost_sign: NDArray[np.bool_]
    spend: Floats
    user_weight: Floats
    arrival: Floats
    user_vector: Floats
    user_effect: Floats
    category: Ints
    brand: Ints
    brand_known: NDArray[np.bool_]
    category_code_known: NDArray[np.bool_]
    price: Floats
    item_weight: Floats
    category_edge: Floats
    item_vector: Floats
    item_effect: Floats
    age_slope: Floats
    segment_hour: Floats
    device_effect: Floats

    @property
    def spend_level(self) -> Floats:
        """Spend of each user on a scale of mean 0 and deviation 1, about."""
        return (np.log(self.spend) - 5.3) / 0.9

    @property
    def price_level(self) -> Floats:
        """Price of each item on a scale of mean 0 and deviation 1, about."""
        mean, between, within = LOG_PRICE
        return (np.log(self.price) - mean) / float(np.hypot(between, within))

    @property
    def fingerprint(self) -> list[float]:
        """Sums that tell whether another machine drew the same world, the last bits left aside."""
        users = (self.segment, self.age, self.spend, self.user_vector, self.user_effect)
        items = (self.category, self.brand, self.price, self.item_vector, self.item_effect)
        return [float(np.abs(array).sum()) for array in (*users, *items, self.segment_hour)]


def draw_world(settings: SyntheticLog) -> World:
    """Draw users and items from the seed.

    Args:
        settings: Their numbers and the seed.

    Returns:
        The world; the same for the same users, items, days and seed.
    """
    random = np.random.default_rng([settings.seed, 0])
    users, items = settings.users, settings.items
    categories, brands = _bounded(items // 50, 1, 400), _bounded(items // 8, 1, 900)

    segment = random.integers(len(SEGMENTS), size=users)
    segment_vector = _spread(random.normal(size=(len(SEGMENTS), FACTORS)))
    category_vector = _spread(random.normal(size=(categories, FACTORS)))
    spend = np.round(np.exp(np.clip(random.normal(5.3, 0.9, users), 2.3, 8.5)), 2)
    newcomers = int(users * NEWCOMERS)
    arrival = np.concatenate([np.zeros(users - newcomers), random.random(newcomers)])

    category = np.sort(_ranked_choice(random, categories, items, -0.9))
    brand = _ranked_choice(random, brands, items, -0.8)
    popularity = random.permutation(np.arange(1, items + 1, dtype=np.float64) ** POPULARITY_SLOPE)
    item_weight = np.cumsum(popularity) / popularity.sum()
    mean, between, within = LOG_PRICE
    log_price = random.normal(mean, between, categories)[category] + random.normal(0, within, items)
    effect = random.normal(0, 0.6, categories)[category] + random.normal(0, 0.3, brands)[brand]
    share_of_category = np.bincount(category, weights=popularity, minlength=categories) / popularity.sum()
    code_missing = _filled(random, share_of_category, CATEGORY_CODE_MISSING)
    few = int(categories * CATEGORIES_WITHOUT_BRAND)
    no_brands = _filled(random, share_of_category, BRAND_MISSING / 2, at_most=few)
    share_of_item = np.where(no_brands[category], 0.0, popularity / popularity.sum())
    brand_missing = no_brands[category] | _filled(
        random, share_of_item, BRAND_MISSING - float(share_of_category[no_brands].sum())
    )
    return World(
        settings=settings,
        segment=segment,
        age=np.clip(np.rint(random.normal(41, 14, users)), 18, 90).astype(np.int64),
        lost_sign=random.random(users) < 0.2,
        spend=spend.astype(np.float64),
        user_weight=np.cumsum(random.gamma(1.5, size=users) + 0.05),
        arrival=arrival,
        user_vector=segment_vector[segment] + random.normal(0, 0.2, (users, FACTORS)),
        user_effect=random.normal(0, 0.4, len(SEGMENTS))[segment] + random.normal(0, 0.15, users),
        category=category,
        brand=brand,
        brand_known=~brand_missing,
        category_code_known=~code_missing,
        price=np.round(np.clip(np.exp(log_price), *PRICE_RANGE), 2),
        item_weight=item_weight,
        category_edge=np.concatenate([[0.0], np.cumsum(share_of_category)]),
        item_vector=category_vector[category] + random.normal(0, 0.15, (items, FACTORS)),
        item_effect=effect + random.normal(0, 0.2, items),
        age_slope=random.normal(0, 0.3, categories),
        segment_hour=random.uniform(0, 24, len(SEGMENTS)),
        device_effect=np.array([0.3, 0.1, -0.3]),
    )


def _bounded(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def _spread(vectors: Floats) -> Floats:
    # A few vectors drawn blindly may nearly vanish or agree; equal lengths keep every seed about as learnable.
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True) * np.sqrt(FACTORS))


def _ranked_choice(random: np.random.Generator, kinds: int, size: int, slope: float) -> Ints:
    weight = np.arange(1, kinds + 1, dtype=np.float64) ** slope
    return random.choice(kinds, size=size, p=weight / weight.sum())


def _filled(random: np.random.Generator, share: Floats, goal: float, at_most: int | None = None) -> NDArray[np.bool_]:
    """Random entries, so many at most, whose shares add up to `goal`, as near below it as a few tries come."""
    best, nearest = np.zeros(len(share), dtype=bool), 0.0
    for _ in range(max(1, 16_000 // len(share))):  # of many small shares the first try comes near enough
        chosen, total = np.zeros(len(share), dtype=bool), 0.0
        for index in random.permutation(len(share)):
            if at_most is not None and chosen.sum() >= at_most:
                break
            if 0 < share[index] <= goal - total:
                chosen[index] = True
                total += float(share[index])
        if total > nearest:
            best, nearest = chosen, total
    return best
