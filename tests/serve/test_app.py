"""A real server on loopback: right scores, and a reason for everything else."""

from __future__ import annotations

import json
import random
import string
import threading

import numpy as np
import pytest

ROW = {"user": "u1", "hour": 9, "price": 12.5}


def tensor(name, datatype, data, shape=None):
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


def test_rows_are_scored_as_by_hand_and_exactly_as_without_a_server(client, oracle):
    rows = [ROW, {"user": "new"}, {"user": "007", "price": None}, {"user": "u2", "hour": None, "price": 3}]
    status, answer = client.ask("POST", "/score", {"rows": rows})
    assert status == 200
    assert answer.keys() == {"scores", "logits", "missing"}  # this graph does not tell what it does not know
    assert answer["missing"] == [[], ["hour", "price"], ["hour", "price"], ["hour"]]
    assert answer["logits"] == pytest.approx([oracle(row) for row in rows], abs=1e-6)
    assert answer["scores"] == pytest.approx([1 / (1 + np.exp(-oracle(row))) for row in rows], abs=1e-6)
    status, tensors = client.ask(
        "POST",
        "/v2/models/click/infer",
        {
            "id": "42",
            "inputs": [
                tensor("user", "BYTES", ["u1", "u2"]),
                tensor("price", "FP32", [[12.5], [3]], shape=[2, 1]),
                tensor("hour", "INT32", [9, None], shape=[2, 1]),
            ],
        },
    )
    assert status == 200
    assert tensors["id"] == "42"
    assert tensors["model_name"] == "click"
    logit, score = tensors["outputs"]
    assert (logit["name"], logit["datatype"], logit["shape"]) == ("logit", "FP32", [2])
    assert logit["data"] == [answer["logits"][0], answer["logits"][3]]
    assert score["data"] == [answer["scores"][0], answer["scores"][3]]


def test_an_output_can_be_asked_for_alone(client):
    request = {"inputs": [tensor("user", "BYTES", ["u1"])], "outputs": [{"name": "score"}]}
    status, answer = client.ask("POST", "/v2/models/click/infer", request)
    assert status == 200
    assert [output["name"] for output in answer["outputs"]] == ["score"]


def test_health_and_metadata(client):
    assert client.ask("GET", "/v2/health/live") == (200, {"live": True})
    assert client.ask("GET", "/v2/health/ready") == (200, {"ready": True})
    assert client.ask("GET", "/v2/models/click/ready") == (200, {"name": "click", "ready": True})
    assert client.ask("GET", "/v2")[1] == {"name": "lightning_mp", "version": "0.1.0", "extensions": []}
    status, model = client.ask("GET", "/v2/models/click")
    assert status == 200
    assert model["inputs"] == [
        {"name": "user", "datatype": "BYTES", "shape": [-1]},
        {"name": "hour", "datatype": "INT64", "shape": [-1]},
        {"name": "price", "datatype": "FP64", "shape": [-1]},
    ]
    assert [output["name"] for output in model["outputs"]] == ["logit", "score"]


def test_no_rows_are_no_scores(client):
    assert client.ask("POST", "/score", {"rows": []}) == (200, {"scores": [], "logits": [], "missing": []})
    status, answer = client.ask("POST", "/v2/models/click/infer", {"inputs": [tensor("user", "BYTES", [], [0])]})
    assert status == 200
    assert answer["outputs"][0]["shape"] == [0]


@pytest.mark.parametrize(
    ("row", "words", "hint"),
    [
        ({"user": "u1", "hour": True}, "`rows[1]`: `hour` is true, not an integer", "without a fraction"),
        ({"user": "u1", "hour": 9.0}, "`rows[1]`: `hour` is 9.0, not an integer", "without a fraction"),
        ({"user": "u1", "hour": "9"}, '`rows[1]`: `hour` is "9", not an integer', "without quotes"),
        ({"user": "u1", "hour": -(2**63)}, "`hour` is -9223372036854775808, not an integer from", ""),
        ({"user": "u1", "hour": 2**70}, "`hour` is 1.1805916207174113e+21, not an integer", ""),
        ({"user": "u1", "price": "1"}, '`rows[1]`: `price` is "1", not a finite number', "without quotes"),
        ({"user": "u1", "price": False}, "`price` is false, not a finite number", "null when it is missing"),
        ({"user": "u1", "price": [1]}, "`price` is [1], not a finite number", ""),
        ({"user": "u1", "price": {}}, "`price` is {}, not a finite number", ""),
        ({"user": 7}, "`rows[1]`: `user` is 7, not a text", "also for an id made of digits"),
        ({"user": ""}, "`rows[1]`: `user` is missing, and the model needs it", "send it"),
        ({"user": None}, "`user` is missing, and the model needs it", "send it"),
        ({}, "`rows[1]`: `user` is missing, and the model needs it", "send it"),
        ({"user": "u1", "prise": 1}, '`rows[1]`: "prise" is not an input of this model', "did you mean `price`?"),
        ({"user": "u1", "zzz": 1}, '"zzz" is not an input', "the model takes `user`, `hour`, `price`"),
        ([1], "`rows[1]` is [1], not an object", "send each row as"),
        (None, "`rows[1]` is null, not an object", "send each row as"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place_name_and_value(client, row, words, hint):
    status, answer = client.ask("POST", "/score", {"rows": [ROW, row]})
    assert status == 400
    assert answer.keys() == {"error", "hint"}
    assert words in answer["error"]
    assert hint in answer["hint"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b'{"rows":[{"user":"u1","price":NaN}]}', "the body is not JSON"),
        (b'{"rows":[{"user":"u1","price":-Infinity}]}', "the body is not JSON"),
        (b'{"rows":[{"user":"u1","price":1e400}]}', "number is infinity"),
        (b'{"rows":[{"user":"\\ud800"}]}', "the body is not JSON"),
        (b'{"rows":[{"user":"\xff"}]}', "not valid UTF-8"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[1]", "the body is [1], not an object"),
        (b"null", "the body is null, not an object"),
        (b"{}", "the body lacks `rows`"),
        (b'{"rows":[],"row":[]}', 'the body holds "row"'),
        (b'{"rows":3}', "`rows` is 3, not a list"),
    ],
)
def test_a_wrong_body_is_refused(client, body, words):
    status, answer = client.ask("POST", "/score", body)
    assert status == 400
    assert words in answer["error"]
    assert client.ask("POST", "/score", {"rows": [ROW]})[0] == 200  # on the same connection


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "`inputs` is null, not a list"),
        ({"inputs": []}, "`inputs` is [], not a list of tensors"),
        ({"inputs": [3]}, "`inputs[0]` has no name"),
        ({"inputs": [tensor("usr", "BYTES", ["u1"])]}, '"usr" is not an input of this model'),
        ({"inputs": [tensor("user", "BYTES", ["u1"])] * 2}, "`user` is given twice"),
        ({"inputs": [tensor("user", "INT64", [1])]}, '`user` has datatype "INT64"'),
        ({"inputs": [tensor("user", "BYTES", ["u1"], [2])]}, "`user` has 1 values for shape [2]"),
        ({"inputs": [tensor("user", "BYTES", ["u1", "u2"], [1, 2])]}, "`user` has shape [1, 2]"),
        ({"inputs": [tensor("user", "BYTES", ["u1"], [True])]}, "`user` has shape [true]"),
        ({"inputs": [tensor("user", "BYTES", ["u1"], [-1])]}, "`user` has shape [-1]"),
        ({"inputs": [{**tensor("user", "BYTES", ["u1"]), "data": "u1"}]}, "`user` has no list `data`"),
        ({"inputs": [tensor("user", "BYTES", ["u1"]), tensor("hour", "INT64", [1, 2])]}, "2 rows, others have 1"),
        ({"inputs": [tensor("hour", "INT64", [9])]}, "`inputs` lacks `user`"),
        (
            {"inputs": [tensor("user", "BYTES", ["u1", 5])]},
            "`inputs[0].data[1]`: `user` is 5, not a text",
        ),
        ({"inputs": [tensor("user", "BYTES", ["u1"])], "id": 3}, "`id` is 3, not a text"),
        ({"inputs": [tensor("user", "BYTES", ["u1"])], "outputs": [{"name": "x"}]}, '"x" is not an output'),
        ({"inputs": [tensor("user", "BYTES", ["u1"])], "outputs": 1}, "`outputs` is 1"),
    ],
)
def test_a_wrong_tensor_is_refused(client, request_, words):
    status, answer = client.ask("POST", "/v2/models/click/infer", request_)
    assert status == 400
    assert words in answer["error"]


def test_wrong_paths_and_methods_are_told(client):
    status, answer = client.ask("GET", "/")
    assert status == 404
    assert "/v2/models/click/infer" in answer["hint"]
    assert client.ask("POST", "/v2/models/other/infer", {})[0] == 404
    client.send("GET", "/score")
    status, answer, headers = client.reply()
    assert (status, headers["allow"], answer["hint"]) == (405, "POST", "use POST")
    client.send("DELETE", "/v2")
    status, _, headers = client.reply()
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_limits_of_body_rows_and_encoding(running, new_client):
    port = running(max_body_bytes=2000, max_rows=3)
    status, answer = new_client(port).ask("POST", "/score", {"rows": [ROW] * 4})
    assert (status, answer["error"]) == (413, "4 rows in one request, 3 may be")
    users = tensor("user", "BYTES", ["u1"] * 4)
    assert new_client(port).ask("POST", "/v2/models/click/infer", {"inputs": [users]})[0] == 413
    assert new_client(port).ask("POST", "/score", b" " * 2001)[0] == 413
    status, answer = new_client(port).ask("POST", "/score", b"x", headers="content-encoding: gzip\r\n")
    assert status == 415
    chunked = new_client(port)
    chunked.socket.sendall(b"POST /score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    chunked.socket.sendall(b"bb8\r\n" + b" " * 3000 + b"\r\n")
    assert chunked.reply()[0] == 413
    assert new_client(port).ask("POST", "/score", {"rows": [ROW] * 3})[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_far_too_much_reads_the_reply_and_no_reset(running, new_client, chunked):
    client, size = new_client(running(max_body_bytes=2000)), 12 * 2**20
    told = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    client.socket.sendall(f"POST /score HTTP/1.1\r\nhost: x\r\n{told}\r\n\r\n".encode())
    if chunked:
        client.socket.sendall(f"{size:x}\r\n".encode())
    client.socket.sendall(b" " * size)  # all of it before a look at the reply, as simple clients do
    client.socket.sendall(b"\r\n0\r\n\r\n" if chunked else b"")
    status, answer, headers = client.reply()
    assert (status, answer["error"], headers["connection"]) == (413, "the body is longer than 2,000 bytes", "close")
    assert client.socket.recv(1) == b""


def test_who_waits_for_100_continue_is_refused_without_sending(running, new_client):
    client = new_client(running(max_body_bytes=2000))
    client.socket.sendall(b"POST /score HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\nexpect: 100-continue\r\n\r\n")
    assert client.reply()[0] == 413
    assert client.socket.recv(1) == b""


def test_a_body_in_pieces_is_read_whole(client):
    body = json.dumps({"rows": [ROW]}).encode()
    client.socket.sendall(f"POST /score HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode())
    for byte in body:
        client.socket.sendall(bytes([byte]))
    assert client.reply()[0] == 200


def test_thousands_of_mutated_requests_get_a_reason_or_a_score(client, caplog):
    seeds = [
        ("/score", json.dumps({"rows": [ROW, {"user": "u2"}]})),
        (
            "/v2/models/click/infer",
            json.dumps({"id": "1", "inputs": [tensor("user", "BYTES", ["u1"]), tensor("price", "FP64", [1.5])]}),
        ),
    ]
    words = ["null", "true", "[]", "{}", "-1", "1e308", "1e400", "NaN", '"', "\\u0000", "\\ud83d", ":", ",", "[" * 50]
    words += ["9223372036854775808", '"rows"', '"shape":[0]', '"data":', "\x00", "ü", "\u202e", "-0.0", "\\", "0x1"]
    rng = random.Random(20240517)
    counts: dict[int, int] = {}
    for _ in range(4000):
        path, text = rng.choice(seeds)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(text) + 1)
            end = min(len(text), start + rng.choice([0, 0, 1, 2, 5, 15]))
            text = text[:start] + rng.choice([*words, "", rng.choice(string.printable)]) + text[end:]
        body = bytearray(text.encode())
        if rng.random() < 0.1 and body:
            body[rng.randrange(len(body))] = rng.randrange(256)
        status, answer = client.ask("POST", path, bytes(body))
        counts[status] = counts.get(status, 0) + 1
        assert status == 200 or (400 <= status < 500 and answer["error"] and answer["hint"]), (status, body)
    assert counts[200] > 20
    assert counts[400] > 1000
    assert not caplog.records


def test_many_clients_at_once_each_get_their_own_scores(running, new_client, oracle):
    port = running()
    wrong = []

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        client = new_client(port)
        for _ in range(60):
            rows = [
                {"user": rng.choice(["u1", "u2", "007", "x"]), "price": rng.uniform(-50, 50)}
                for _ in range(rng.randint(1, 5))
            ]
            if rng.random() < 0.1:
                rows[0]["price"] = 1e300  # no finite score: must not spoil the others of its batch
            status, answer = client.ask("POST", "/score", {"rows": rows})
            if rows[0]["price"] == 1e300:
                if status != 422 or "row 0" not in answer["error"]:
                    wrong.append((rows, answer))
            elif status != 200 or np.abs(np.array(answer["logits"]) - [oracle(r) for r in rows]).max() > 1e-5:
                wrong.append((rows, answer))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_fault_of_ours_is_a_500_without_a_traceback(running, new_client, tiny_bundle, caplog):
    from lightning_mp.serve.scorer import Scorer

    class Failing(Scorer):
        broken = False

        def run(self, columns, rows):
            if self.broken:
                raise MemoryError("no room\nleft")
            return super().run(columns, rows)

    scorer = Failing.open(tiny_bundle)
    scorer.broken = True
    status, answer = new_client(running(scorer=scorer)).ask("POST", "/score", {"rows": [ROW]})
    assert status == 500
    assert answer == {"error": "the server failed: MemoryError", "hint": "see its log"}
    assert [record.getMessage() for record in caplog.records] == ["POST /score: MemoryError: no room left"]
    assert not any(record.exc_info for record in caplog.records)


def test_a_name_with_a_slash_is_refused(tiny_bundle):
    from lightning_mp.errors import ConfigurationError
    from lightning_mp.serve.app import ScoringApp
    from lightning_mp.serve.scorer import Scorer

    with pytest.raises(ConfigurationError, match="`name` cannot be 'a/b'"):
        ScoringApp(Scorer.open(tiny_bundle), name="a/b")
