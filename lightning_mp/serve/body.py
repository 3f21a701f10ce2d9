"""Read the body of a request, up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from lightning_mp.serve.request_error import RequestError

Message = MutableMapping[str, Any]


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
    _check_headers(scope["headers"], max_bytes)
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    body: bytes | bytearray = message.get("body", b"")
    if message.get("more_body"):
        body = bytearray(body)
        while message.get("more_body"):
            if len(body) > max_bytes:
                raise _too_long(max_bytes)
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
    if len(body) > max_bytes:
        raise _too_long(max_bytes)
    return body


def _check_headers(headers: list[tuple[bytes, bytes]], max_bytes: int) -> None:
    for key, value in headers:
        if key == b"content-length" and value.isdigit() and int(value[:20]) > max_bytes:
            raise _too_long(max_bytes)
        if key == b"content-encoding" and value.lower() != b"identity":
            raise RequestError(f"the body is encoded as {value[:40]!r}", "send plain JSON", status=415)
        if key == b"inference-header-content-length":
            raise RequestError("binary tensors are not taken", "send `data` as JSON", status=415)


def _too_long(max_bytes: int) -> RequestError:
    return RequestError(f"the body is longer than {max_bytes:,} bytes", "send the rows in parts", status=413)
