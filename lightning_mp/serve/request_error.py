"""RequestError: what is wrong with a request, in words its sender can act on."""

from __future__ import annotations

from lightning_mp.errors import DataError


class RequestError(DataError):
    """A request that cannot be answered as it is.

    Args:
        problem: What is wrong, with the field, the value and the row.
        hint: One thing to do about it.
        status: HTTP status of the reply, 400 to 599.
        unread: Whether the sender may still be sending the body.

    Example:
        >>> error = RequestError("`rows[2]`: `price` is true, not a number", "send a JSON number")
        >>> error.status, error.exit_code
        (400, 3)
    """

    def __init__(self, problem: str, hint: str, status: int = 400, *, unread: bool = False) -> None:
        super().__init__(problem, hint)
        self.status = status
        self.unread = unread

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, str, int]]:  # type: ignore[override]  # an exception's own is typed more narrowly
        return type(self), (self.problem, self.hint, self.status)
