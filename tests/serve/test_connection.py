"""Slow and broken senders cost a connection each, and end."""

from __future__ import annotations

import socket

import pytest

ROW = {"user": "u1"}


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while part := sock.recv(1 << 16):
        received += part
    return received


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /score HT",
        b"POST /score HTTP/1.1\r\nhost: x\r\n",
        b"POST /score HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
    ],
)
def test_a_half_open_request_is_closed_in_time_while_others_are_served(running, new_client, begun):
    port = running(server_settings={"read_timeout_seconds": 0.3})
    slow = [new_client(port) for _ in range(30)]
    for client in slow:
        client.socket.sendall(begun)
    assert new_client(port).ask("POST", "/score", {"rows": [ROW]})[0] == 200
    for client in slow:
        answer = read_all(client.socket)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.count(b"HTTP/1.1") == 1


def test_a_kept_connection_with_a_half_second_request_is_closed(running, new_client):
    client = new_client(running(server_settings={"read_timeout_seconds": 0.3}))
    assert client.ask("POST", "/score", {"rows": [ROW]})[0] == 200
    client.socket.sendall(b"POST /score HTTP/1.1\r\n")
    assert client.reply()[0] == 408


def test_trickling_bytes_does_not_extend_the_deadline(running, new_client):
    client = new_client(running(server_settings={"read_timeout_seconds": 0.5}))
    client.socket.sendall(b"POST /score HTTP/1.1\r\n")
    client.socket.settimeout(0.05)
    received = b""
    for _ in range(400):
        try:
            received = client.socket.recv(1 << 16)
            break
        except TimeoutError:
            client.socket.sendall(b"x: y\r\n")
    assert received.startswith(b"HTTP/1.1 408 ")


def test_an_idle_kept_connection_outlives_the_deadline_of_a_request(running, new_client):
    client = new_client(running(server_settings={"read_timeout_seconds": 0.3}))
    assert client.ask("GET", "/v2/health/live")[0] == 200
    client.socket.settimeout(1.0)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    client.socket.settimeout(60)
    assert client.ask("GET", "/v2/health/live")[0] == 200


def test_what_is_not_http_is_answered_in_json(running, new_client):
    client = new_client(running())
    client.socket.sendall(b'\x16\x03\x01 hello "world"\r\n\r\n')
    status, answer, _ = client.reply()
    assert status == 400
    assert answer["hint"] == "send HTTP/1.1"


def test_connections_beyond_the_limit_are_refused(running, new_client):
    port = running(server_settings={"max_connections": 2})
    first, second = new_client(port), new_client(port)
    assert first.ask("GET", "/v2/health/live")[0] == 200
    assert second.ask("GET", "/v2/health/live")[0] == 200
    assert new_client(port).reply()[0] == 503
    second.close()
    first.ask("GET", "/v2/health/live")
    assert first.ask("POST", "/score", {"rows": [ROW]})[0] == 200
