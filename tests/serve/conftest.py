"""A real bundle written by hand in milliseconds, its plain oracle, and a real server on loopback."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_mp import bundle as bundles
from lightning_mp.export.sample_inputs import write_samples
from lightning_mp.manifest import Manifest, RawInput
from lightning_mp.schema import Feature, FeatureSchema

USERS = {"u1": 0.5, "u2": -1.25, "007": 2.0}
HOURS = {9: 0.25, 23: -0.75}
UNKNOWN_USER, UNKNOWN_HOUR, MEAN, STD = 0.125, 0.0625, 10.0, 4.0


def oracle(row: dict[str, Any]) -> float:
    """The logit of a row, by hand."""
    price = row.get("price")
    z = ((MEAN if price is None else price) - MEAN) / STD
    return USERS.get(row.get("user", ""), UNKNOWN_USER) + HOURS.get(row.get("hour"), UNKNOWN_HOUR) + 0.75 * z


def make_bundle(path: Path, *, price: str = "price", spoil: str | None = None) -> bundles.Bundle:
    """Write a bundle: text `user` (required), integer `hour`, number `price`, whose name can be changed."""
    import onnx
    from onnx import TensorProto, helper

    def constant(name: str, values: Any, dtype: Any) -> Any:
        return onnx.numpy_helper.from_array(np.array(values, dtype=dtype), name)

    def encode(source: str, target: str, **keys: Any) -> Any:
        return helper.make_node("LabelEncoder", [source], [target], domain="ai.onnx.ml", default_int64=0, **keys)

    ranks = list(range(1, 1 + len(USERS)))
    nodes = [
        encode("user", "user_row", keys_strings=list(USERS), values_int64s=ranks),
        helper.make_node("Gather", ["users", "user_row"], ["user_term"]),
        encode("hour", "hour_row", keys_int64s=list(HOURS), values_int64s=[1, 2]),
        helper.make_node("Gather", ["hours", "hour_row"], ["hour_term"]),
        helper.make_node("IsNaN", [price], ["absent"]),
        helper.make_node("Where", ["absent", "mean", price], ["filled"]),
        helper.make_node("Sub", ["filled", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "std"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["dense"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["dense", "slope"], ["price_term"]),
        helper.make_node("Add", ["user_term", "hour_term"], ["ids_term"]),
        helper.make_node("Add", ["ids_term", "price_term"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    tables = [
        constant("users", [UNKNOWN_USER, *USERS.values()], np.float32),
        constant("hours", [UNKNOWN_HOUR, *HOURS.values()], np.float32),
        constant("mean", MEAN, np.float64),
        constant("std", STD, np.float64),
        constant("slope", 0.75, np.float32),
    ]
    types = {"user": TensorProto.STRING, "hour": TensorProto.INT64, price: TensorProto.DOUBLE}
    graph = helper.make_graph(
        nodes,
        "pipeline",
        [helper.make_tensor_value_info(name, kind, ["batch"]) for name, kind in types.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in ("logit", "score")],
        tables,
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    schema = FeatureSchema(
        features=(
            Feature(
                name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32", vocabulary_size=4
            ),
            Feature(
                name="hour",
                kind="categorical",
                role="context",
                source_dtype="int64",
                stored_dtype="int32",
                vocabulary_size=3,
            ),
            Feature(name=price, kind="numeric", role="item", source_dtype="double", stored_dtype="float32"),
        )
    )
    inputs = (
        RawInput(name="user", datatype="BYTES", required=True),
        RawInput(name="hour", datatype="FP64" if spoil == "datatype" else "INT64"),
        RawInput(name="cost" if spoil == "name" else price, datatype="FP64"),
    )
    with bundles.writing(path) as folder:
        (folder / bundles.PIPELINE).write_bytes(b"not a graph" if spoil == "graph" else model.SerializeToString())
        hours, prices = np.array([9, 23]), np.array([12.5, math.nan])
        write_samples(
            folder / bundles.SAMPLES,
            {"user": np.array(["u1", "u2"], dtype=object), "hour": hours, price: prices},
            np.array([1.21875, -2.0], dtype=np.float32),
        )
        bundles.seal(folder, Manifest(schema=schema, inputs=inputs, versions={"lightning_mp": "0.1.0"}))
    return bundles.Bundle.open(path)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a bundle that every test may read and none may change."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "click").path


class Client:
    """Speaks HTTP/1.1 over one kept connection, and holds every reply to strict JSON."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._left = b""

    def send(self, method: str, path: str, body: bytes = b"", headers: str = "") -> None:
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        self.socket.sendall(head.encode() + body)

    def reply(self) -> tuple[int, Any, dict[str, str]]:
        head, body = self._until(b"\r\n\r\n").decode(), b""
        lines = head.split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        size = int(headers["content-length"])
        while len(self._left) < size:
            self._left += self._more()
        body, self._left = self._left[:size], self._left[size:]
        return int(lines[0].split()[1]), strict_json(body), headers

    def ask(self, method: str, path: str, body: Any = b"", headers: str = "") -> tuple[int, Any]:
        self.send(method, path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)
        status, answer, _ = self.reply()
        return status, answer

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._left:
            self._left += self._more()
        head, _, self._left = self._left.partition(mark)
        return head

    def _more(self) -> bytes:
        received = self.socket.recv(1 << 16)
        assert received, "the server closed the connection"
        return received

    def close(self) -> None:
        self.socket.close()


def strict_json(text: bytes) -> Any:
    """Parse JSON as the standard has it: no NaN, no infinity, no name twice."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads(text.decode("utf-8"), parse_constant=refuse, object_pairs_hook=unique)


@contextmanager
def servers(bundle: Path) -> Iterator[Any]:
    """Gives `start(**settings of the app)`, which starts a server in a thread and returns its port."""
    from lightning_mp.serve.app import ScoringApp
    from lightning_mp.serve.scorer import Scorer
    from lightning_mp.serve.server import listen, scoring_server

    started = []

    def start(*, scorer: Any = None, server_settings: Any = None, **settings: Any) -> int:
        app = ScoringApp(scorer or Scorer.open(bundle), name="click", **settings)
        sock = listen("127.0.0.1", 0)
        server = scoring_server(app, **(server_settings or {}))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="server")
        thread.start()
        started.append((server, thread))
        return int(sock.getsockname()[1])

    try:
        yield start
    finally:
        for server, thread in started:
            server.should_exit = True
            thread.join()


@pytest.fixture
def running(tiny_bundle: Path) -> Iterator[Any]:
    """`running(**settings of the app)` starts a server and gives its port; ended with the test."""
    with servers(tiny_bundle) as start:
        yield start


@pytest.fixture(scope="session")
def default_port(tiny_bundle: Path) -> Iterator[int]:
    """Port of a server with the default settings."""
    with servers(tiny_bundle) as start:
        yield start()


@pytest.fixture
def new_client() -> Iterator[Any]:
    """`new_client(port)` connects; closed with the test."""
    clients = []

    def connect(port: int) -> Client:
        clients.append(Client(port))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(default_port: int) -> Iterator[Client]:
    """A client of a server with the default settings."""
    client = Client(default_port)
    yield client
    client.close()


@pytest.fixture(scope="session", name="oracle")
def _oracle() -> Any:
    return oracle


@pytest.fixture(scope="session", name="make_bundle")
def _make_bundle() -> Any:
    return make_bundle
