"""Listen on a port and serve an application until a signal, then drain."""

from __future__ import annotations

import errno
import resource
import socket
from typing import Any, Final

from lightning_mp.errors import ConfigurationError, EnvironmentMismatchError
from lightning_mp.optional import require
from lightning_mp.serve.app import ScoringApp
from lightning_mp.serve.connection import connection_class

_BACKLOG: Final = 2048
_MOST_CONNECTIONS: Final = 10_000
_SPARE_FILES: Final = 64  # open files that are no connections


def listen(host: str, port: int) -> socket.socket:
    """Take a port; connections made from now on wait until `serve` runs.

    Args:
        host: Name or address of an interface of this machine.
        port: 0 to 65535; 0 takes a free one.

    Raises:
        ConfigurationError: The port is no port.
        EnvironmentMismatchError: It is in use or may not be taken, or the host is not this machine's.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"`port` is {port}; ports are 0 to 65535", "give another port")
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise EnvironmentMismatchError(f"`host` {host!r} is not known here: {error}", "use 127.0.0.1") from error
    sock = socket.socket(family, kind, number)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        problem, hint = {
            errno.EADDRINUSE: (f"port {port} of {host} is in use", "stop what uses it, or give another `--port`"),
            errno.EACCES: (f"port {port} may not be taken by this user", "give a `--port` from 1024 on"),
            errno.EADDRNOTAVAIL: (f"{host} is no address of this machine", "use 127.0.0.1, or 0.0.0.0 for all"),
        }.get(error.errno or 0, (f"port {port} of {host} cannot be taken: {error.strerror}", "give another `--port`"))
        raise EnvironmentMismatchError(problem, hint) from error
    return sock


def scoring_server(
    app: ScoringApp,
    *,
    read_timeout_seconds: float = 10.0,
    keep_alive_seconds: int = 75,
    drain_seconds: int = 10,
    max_connections: int | None = None,
) -> Any:
    """A uvicorn server for `app`: `scoring_server(app).run(sockets=[listen(host, port)])`.

    It runs until SIGTERM or SIGINT, then takes no new connection, finishes what was begun, and raises the signal
    again, for the handlers that stood before.

    Args:
        app: The application.
        read_timeout_seconds: Time for a request to arrive whole.
        keep_alive_seconds: Time an idle connection stays open; longer than that of common proxies (60 s), or they
            would send a request into a closing connection.
        drain_seconds: Time for begun requests after the signal.
        max_connections: Open connections; by default what the limit of open files leaves, 10,000 at most.

    Returns:
        A `uvicorn.Server`.

    Raises:
        MissingExtraError: uvicorn is not installed.
    """
    uvicorn = require("uvicorn", "serve")
    if max_connections is None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = files == resource.RLIM_INFINITY
        max_connections = _MOST_CONNECTIONS if unlimited else max(1, min(files - _SPARE_FILES, _MOST_CONNECTIONS))
    config = uvicorn.Config(
        app,
        http=connection_class(read_timeout_seconds=read_timeout_seconds, max_connections=max_connections),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # a line a request costs more than the request; faults are ours to tell
        access_log=False,
        server_header=False,
        timeout_keep_alive=keep_alive_seconds,
        timeout_graceful_shutdown=drain_seconds,
    )
    return uvicorn.Server(config)
