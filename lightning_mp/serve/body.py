"""Read the body of a request, up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from lightning_mp.serve.request_error import RequestError

Message = MutableMapping[str, Any]
_MOST_DISCARDED: Final = 64 * 2**20
"""Bytes of a refused body that are read and thrown away; a sender of more may find its connection reset."""


async def read_body(
    scope: Message, receive: Callable[[], Awaitable[Message]], *, max_bytes: int
) -> bytes | bytearray | None:
    """Read a request's body.

    Args:
        scope: ASGI's, for the headers.
        receive: ASGI's.
        max_bytes: Longest body. One that announces more is refused before it is read.

    Returns:
        The body; `None` when the client left before its end.

    Raises:
        RequestError: The body is longer (413), or compressed (415).
    """
    refusal = _refused_by_headers(scope["headers"], max_bytes)
    if refusal is not None:
        raise refusal
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    body: bytes | bytearray = message.get("body", b"")
    if message.get("more_body"):
        body = bytearray(body)
        while message.get("more_body"):
            if len(body) > max_bytes:
                raise _too_long(max_bytes, unread=True)
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
    if len(body) > max_bytes:
        raise _too_long(max_bytes)
    return body


async def discard_body(scope: Message, receive: Callable[[], Awaitable[Message]]) -> None:
    """Read the rest of a refused body and throw it away, so that its sender gets to read the reply.

    A connection that is closed with unread bytes is reset, and the reply is lost with it. A sender that waits for
    `100 Continue` has sent nothing, and is not asked to.

    Args:
        scope: ASGI's, for the headers.
        receive: ASGI's.
    """
    if any(key == b"expect" for key, _ in scope["headers"]):
        return
    seen = 0
    while seen <= _MOST_DISCARDED:
        message = await receive()
        seen += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return


def _refused_by_headers(headers: list[tuple[bytes, bytes]], max_bytes: int) -> RequestError | None:
    for key, value in headers:
        if key == b"content-length" and value.isdigit() and int(value[:20]) > max_bytes:
            return _too_long(max_bytes, unread=True)
        if key == b"content-encoding" and value.lower() != b"identity":
            return RequestError(f"the body is encoded as {value[:40]!r}", "send plain JSON", status=415, unread=True)
        if key == b"inference-header-content-length":
            return RequestError("binary tensors are not taken", "send `data` as JSON", status=415, unread=True)
    return None


def _too_long(max_bytes: int, *, unread: bool = False) -> RequestError:
    problem = f"the body is longer than {max_bytes:,} bytes"
    return RequestError(problem, "send the rows in parts", status=413, unread=unread)
