"""The HTTP connection: uvicorn's, with a deadline for slow senders and JSON for what is not HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from lightning_mp.optional import require


def connection_class(*, read_timeout_seconds: float, max_connections: int) -> type[asyncio.Protocol]:
    """A protocol class for `uvicorn.Config(http=...)`.

    uvicorn waits without end for the rest of a request and answers what is not HTTP in plain text. This class
    closes a connection whose request is not whole in time (408 where no reply was begun; trickling bytes does not
    extend it), refuses connections beyond a number (503), and answers in JSON. Whole requests set no timer.

    Args:
        read_timeout_seconds: Time from the first byte, or from connecting, to the request's last byte.
        max_connections: Open connections; keep it below the limit of open files.

    Raises:
        MissingExtraError: uvicorn is not installed.
    """
    stock: Any = require("uvicorn.protocols.http.auto", "serve").AutoHTTPProtocol

    class Connection(stock):  # type: ignore[misc]  # the class is chosen at run time
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._deadline = _Deadline(self, read_timeout_seconds)
            if len(self.connections) > max_connections:
                _refuse(self.transport, "503 Service Unavailable", "too many connections", "try again")
            else:
                self._deadline.check()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._deadline.check()

        def connection_lost(self, exc: Exception | None) -> None:
            self._deadline.cancel()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            _refuse(self.transport, "400 Bad Request", msg.rstrip(".").replace('"', "'"), "send HTTP/1.1")

    return Connection


class _Deadline:
    """Runs while a request has begun, or is yet to begin, and is not whole."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        cycle = self._connection.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self.cancel()
        elif self._timer is None:
            self._timer = self._connection.loop.call_later(self._seconds, self._expire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        cycle = self._connection.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self._connection.transport.close()
        else:
            problem = f"no whole request came in {self._seconds:g} s"
            _refuse(self._connection.transport, "408 Request Timeout", problem, "send it at once")


def _refuse(transport: asyncio.Transport, status: str, problem: str, hint: str) -> None:
    if transport.is_closing():
        return
    body = f'{{"error":"{problem}","hint":"{hint}"}}'.encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
    transport.close()
