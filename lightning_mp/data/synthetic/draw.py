"""Draw impressions and what came of them, a slice of time after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.synthetic.impressions import Impressions
from lightning_mp.data.synthetic.probability import click_log_odds
from lightning_mp.data.synthetic.visiting_time import DAY_US, visiting_time
from lightning_mp.data.synthetic.world import DEVICES, World

CLICK, CART, ORDER = 0.05, 0.009, 0.004  # of the impressions
SESSION_SIZE = (0.28, 1.22)  # rounded-up log-normal; REES46 head: mean 3.4 events, 41 % single, 99 % within 21
LONGEST_SESSION = 51  # REES46 head
PAUSE = (3.51, 0.97)  # log of seconds between two events of a session, REES46 head: median 33 s
PAGE = 10  # places on a page
PROMOTED = 0.05

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Draw:
    """A world with the constants that bring clicks, carts and orders to their shares.

    Args:
        world: Users and items.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        pilot = self._shown(np.random.default_rng([world.settings.seed, 1]), 2**19, 0.0, 1.0, first_session=0)
        # Every other row: those of a session resemble each other, and the mean gains nothing from them.
        log_odds = self._log_odds(*(column[::2] for column in pilot))
        self.click_constant = _constant(log_odds, np.ones_like(log_odds), CLICK)
        clicked = _sigmoid(log_odds + self.click_constant)
        self.cart_constant = _constant(0.4 * log_odds, clicked, CART / CLICK)
        carted = clicked * self._cart_after_click(log_odds)
        self.order_constant = _constant(0.3 * log_odds, carted, ORDER / CART)

    @property
    def fingerprint(self) -> list[float]:
        """Numbers that tell whether another machine or version draws the same, the last bits left aside."""
        return [*self.world.fingerprint, self.click_constant, self.cart_constant, self.order_constant]

    def chances(
        self, *, user: Ints, item: Ints, time: Ints, position: Ints, device: Ints, promotion: Floats
    ) -> dict[str, Floats]:
        """Chance of a click, of a cart and of an order of an impression, each (N,) in [0, 1].

        From indices of users, items and devices and the rest as recorded. A cart takes a click before it, an order a
        cart, so each is the one before times a chance of its own.
        """
        log_odds = click_log_odds(
            self.world, user=user, item=item, time=time, position=position, device=device, promotion=promotion
        )
        click = _sigmoid(log_odds + self.click_constant)
        cart = click * self._cart_after_click(log_odds)
        return {"click": click, "cart": cart, "order": cart * self._order_after_cart(log_odds)}

    def promotion(self, item: Ints, time: Ints) -> Floats:
        """Strength of the item's promotion on that day: 0, or on 5 % of the days more, up to 1."""
        mixed = _mix(
            item.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(self.world.settings.seed % 2**64)
        )
        uniform = _mix(mixed + (time // DAY_US).astype(np.uint64)) / 2.0**64
        return np.where(uniform < PROMOTED, 0.2 + 0.8 * uniform / PROMOTED, 0.0)

    def impressions(self, part: int, first_row: int, last_row: int) -> Impressions:
        """Impressions `first_row` to `last_row` (left out), which lie in their own slice of time.

        Args:
            part: Number of the slice: it has its own stream of random numbers.
            first_row: Impressions drawn before, in other slices.
            last_row: The same, with this slice.

        Returns:
            As many impressions as asked for; the tail of a session may reach into the next slice's time.
        """
        random = np.random.default_rng([self.world.settings.seed, 2, part])
        total, rows = self.world.settings.impressions, last_row - first_row
        shown = self._shown(random, rows, first_row / total, last_row / total, first_session=first_row)
        user, item, time, session, position, device = shown
        log_odds = self._log_odds(*shown)
        chance = _sigmoid(log_odds + self.click_constant)
        click = random.random(rows) < chance
        cart = click & (random.random(rows) < self._cart_after_click(log_odds))
        order = cart & (random.random(rows) < self._order_after_cart(log_odds))
        dwell = np.round(np.exp(random.normal(*PAUSE, rows) + 0.3 * cart), 3).astype(np.float64)
        promotion = self.promotion(item, time)
        return Impressions(
            user=user, item=item, time=time, session=session, position=position, device=device, promotion=promotion,
            click=click, cart=cart, order=order, dwell=dwell, chance=chance,
        )  # fmt: skip

    def _cart_after_click(self, log_odds: Floats) -> Floats:
        return _sigmoid(0.4 * log_odds + self.cart_constant)

    def _order_after_cart(self, log_odds: Floats) -> Floats:
        return _sigmoid(0.3 * log_odds + self.order_constant)

    def _log_odds(self, user: Ints, item: Ints, time: Ints, _session: Ints, position: Ints, device: Ints) -> Floats:
        promotion = self.promotion(item, time)
        return click_log_odds(
            self.world, user=user, item=item, time=time, position=position, device=device, promotion=promotion
        )

    def _shown(
        self, random: np.random.Generator, rows: int, begin: float, end: float, *, first_session: int
    ) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        world = self.world
        size = np.minimum(np.ceil(np.exp(random.normal(*SESSION_SIZE, rows))), LONGEST_SESSION).astype(np.int64)
        sessions = int(np.searchsorted(np.cumsum(size), rows)) + 1
        start = np.sort(begin + (end - begin) * random.random(sessions))
        user = np.searchsorted(world.user_weight, random.random(sessions) * world.user_weight[-1], side="right")
        settled = int((world.arrival == 0).sum())
        user = np.where(world.arrival[user] > start, user % settled, user)
        device = random.integers(len(DEVICES), size=sessions)
        anchor = world.category[self._items(random.random(sessions))]

        number = np.repeat(np.arange(sessions), size[:sessions])[:rows]
        first = np.concatenate([[0], np.cumsum(size[: sessions - 1])])
        step = np.arange(rows) - first[number]
        pause = np.exp(random.normal(*PAUSE, rows))
        pause[step == 0] = 0.0
        elapsed = np.cumsum(pause)
        seconds = elapsed - elapsed[first][number]
        time = visiting_time(start, world.settings.days)[number] + (seconds * 1e6).astype(np.int64)
        # Half of what a session sees comes from one category: people look for something.
        low, high = world.category_edge[anchor][number], world.category_edge[anchor + 1][number]
        narrow, uniform = random.random(rows) < 0.5, random.random(rows)
        item = self._items(np.where(narrow, low + (high - low) * uniform, uniform))
        return user[number], item, time, number + first_session, step % PAGE + 1, device[number]

    def _items(self, uniform: Floats) -> Ints:
        return np.minimum(np.searchsorted(self.world.item_weight, uniform, side="right"), len(self.world.price) - 1)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=np.float64)


def _constant(log_odds: Floats, weight: Floats, share: float) -> float:
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.average(_sigmoid(log_odds + middle), weights=weight) < share else (low, middle)
    return (low + high) / 2


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014): a number for each (seed, item, day), nothing stored."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
