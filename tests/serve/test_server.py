"""Ports that cannot be taken are told in one line."""

from __future__ import annotations

import socket

import pytest

from lightning_mp.errors import ConfigurationError, EnvironmentMismatchError
from lightning_mp.serve.server import listen


def test_a_port_in_use_is_one_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentMismatchError, match=f"port {port} of 127.0.0.1 is in use") as caught:
            listen("127.0.0.1", port)
    assert "--port" in caught.value.hint


def test_a_host_that_is_not_here_is_one_error():
    with pytest.raises(EnvironmentMismatchError, match=r"192\.0\.2\.1 is no address of this machine"):
        listen("192.0.2.1", 0)
    with pytest.raises(EnvironmentMismatchError, match="`host` 'a\\.\\.b' is not known here"):
        listen("a..b", 0)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_one_error(port):
    with pytest.raises(ConfigurationError, match=f"`port` is {port}"):
        listen("127.0.0.1", port)


def test_the_loopback_of_ipv6_works_where_there_is_one():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    listen("::1", 0).close()
