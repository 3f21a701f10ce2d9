"""`lightning-mp serve`: the whole process, from its one line to its end."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest

from lightning_mp.bundle import SAMPLES, Bundle, seal
from lightning_mp.cli.serve import main
from lightning_mp.errors import BundleError, ConfigurationError, EnvironmentMismatchError
from lightning_mp.export.sample_row import sample_row
from lightning_mp.manifest import Manifest

SERVE = [sys.executable, "-m", "lightning_mp", "serve"]


@pytest.fixture
def server(tiny_bundle):
    """A running `lightning-mp serve`, and the words of the curl command it printed."""
    process = subprocess.Popen(
        [*SERVE, str(tiny_bundle), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first, second = process.stdout.readline(), process.stdout.readline()
    yield process, first, shlex.split(second)
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_the_printed_command_gives_the_score_of_a_real_sample(server):
    _process, first, curl = server
    assert first.startswith('serving "click" at http://127.0.0.1:')
    assert curl[:2] == ["curl", "-s"]
    url, flag, body = curl[2:]
    assert flag == "-d"
    assert json.loads(body) == {"rows": [{"user": "u1", "hour": 9, "price": 12.5}]}
    if shutil.which("curl"):
        answer = subprocess.run(curl, capture_output=True, check=True).stdout
    else:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode())) as reply:
            answer = reply.read()
    assert json.loads(answer)["logits"] == [1.21875]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_drains_what_was_begun_and_ends_with_its_code(server, new_client, number, code):
    process, _, curl = server
    address = urlsplit(curl[2])
    body = curl[4].encode()
    begun, idle = new_client(address.port), new_client(address.port)
    begun.socket.sendall(f"POST /score HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body[:-1])
    assert idle.ask("GET", "/v2/health/live") == (200, {"live": True})
    process.send_signal(number)
    assert idle.socket.recv(1000) == b""  # kept connections are closed: the drain has begun
    with pytest.raises(ConnectionError):
        new_client(address.port).ask("GET", "/v2/health/live")
    begun.socket.sendall(body[-1:])
    assert begun.reply()[:2] == (
        200,
        {"scores": [pytest.approx(0.7718, abs=1e-3)], "logits": [1.21875], "missing": [[]]},
    )
    process.wait(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in process.stderr.read()


def test_a_port_in_use_is_one_error_of_the_environment(tiny_bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [*SERVE, str(tiny_bundle), "--port", str(port)], capture_output=True, text=True, check=False
        )
    assert result.returncode == 5
    assert result.stdout == ""
    assert result.stderr == (
        f"error: port {port} of 127.0.0.1 is in use\n\nhint: stop what uses it, or give another `--port`\n"
    )


def test_a_damaged_bundle_is_refused_before_the_port_is_taken(make_bundle, tmp_path):
    bundle = make_bundle(tmp_path / "damaged")
    content = bytearray(bundle.pipeline.read_bytes())
    content[100] ^= 4
    bundle.pipeline.write_bytes(content)
    with pytest.raises(BundleError, match="its bytes were altered"):
        main([str(bundle.path), "--port", "0"])
    with pytest.raises(BundleError, match="is not a folder"):
        main([str(tmp_path / "nothing")])


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--port", "x"], ConfigurationError, "argument --port: invalid int value: 'x'"),
        (["--port", "70000"], ConfigurationError, "`port` is 70000"),
        (["--prot", "1"], ConfigurationError, "unrecognized arguments: --prot 1"),
        (["--name", "a/b"], ConfigurationError, "`name` cannot be 'a/b'"),
        (["--host", "192.0.2.1", "--port", "0"], EnvironmentMismatchError, "no address of this machine"),
    ],
)
def test_options_that_cannot_work_are_one_error(tiny_bundle, arguments, error, words):
    with pytest.raises(error, match=words):
        main([str(tiny_bundle), *arguments])


def test_a_sample_leaves_out_what_is_missing_and_a_bundle_without_samples_still_has_one(make_bundle, tmp_path):
    bundle = make_bundle(tmp_path / "bundle", price='"$(touch taken)\n\u202e')
    assert sample_row(bundle) == {"user": "u1", "hour": 9, '"$(touch taken)\n\u202e': 12.5}
    (bundle.path / SAMPLES).unlink()
    manifest = bundle.manifest
    seal(bundle.path, Manifest(schema=manifest.schema, inputs=manifest.inputs))
    assert sample_row(Bundle.open(bundle.path)) == {"user": "a", "hour": 0, '"$(touch taken)\n\u202e': 0.0}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_letters_are_printed_as_they_are_where_the_terminal_can(make_bundle, tmp_path, monkeypatch, encoding):
    bundle = make_bundle(tmp_path / "shop", price="Preis \u6d74 \u00fc\u202e\n'\"")
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", out)
    assert main([str(bundle.path), "--port", "0"]) == 0
    out.flush()
    line = out.buffer.getvalue().decode(encoding).splitlines()[1]
    assert json.loads(shlex.split(line)[-1])["rows"] == [
        {"user": "u1", "hour": 9, "Preis \u6d74 \u00fc\u202e\n'\"": 12.5}
    ]
    assert ("\u00fc" in line) == (encoding != "ascii")
    assert ("\u6d74" in line) == (encoding == "utf-8")
    assert "\u202e" not in line


def test_a_link_to_a_bundle_gives_the_model_its_name(tiny_bundle, tmp_path, monkeypatch, capsys):
    (tmp_path / "current").symlink_to(tiny_bundle)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    assert main([str(tmp_path / "current"), "--port", "0"]) == 0
    assert capsys.readouterr().out.startswith('serving "current" at ')
