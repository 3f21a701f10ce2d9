"""What a column's name says of its numbers."""

from __future__ import annotations

import re
from typing import Final

_KEYS: Final = frozenset({"id", "ids", "key", "uuid", "guid", "sku", "upc", "ean", "asin", "hash", "code", "codes"})


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in lower case: `userAge_years` is user, age, years.

    Args:
        name: Of a column.

    Example:
        >>> words_of("userAge_years"), words_of("PRICE-USD")
        (('user', 'age', 'years'), ('price', 'usd'))
    """
    return tuple(word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


def is_key(name: str) -> bool:
    """Whether a name is that of a key: `user_id`, `sku`, `id_in_float`.

    Args:
        name: Of a column.
    """
    return bool(_KEYS & set(words_of(name)))
