"""The scoring server beside a bare echo server, FastAPI and LitServe: CPU a request, latency at 500 requests a second.

    python tests/benchmarks/serving.py --json --check
    python tests/benchmarks/serving.py --quick

Each server is a process of its own, one request holds one row. CPU is what the server's processes used (user and
system) over the requests answered while 32 connections asked as fast as they could; latency is taken from the moment
that a Poisson process of 500 requests a second meant to send, so that a server that stalls is charged for all that it
keeps waiting. The client shares the machine. Rounds over all servers are interleaved; medians. `echo` is uvicorn with
an application that answers the body: what no server in front of the same loop can go below.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from machine import machine

from lightning_mp.bundle import Bundle
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import Feature, FeatureSchema

CONNECTIONS, RATE = 32, 500
ECHO = """
import sys, uvicorn
async def app(scope, receive, send):
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})
uvicorn.run(app, port=int(sys.argv[2]), log_level="critical", access_log=False, lifespan="off")
"""
SESSION = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(sys.argv[1] + "/pipeline.onnx", options, providers=["CPUExecutionProvider"])
types = {"tensor(string)": object, "tensor(int64)": numpy.int64, "tensor(double)": numpy.float64}
types = {entry.name: types[entry.type] for entry in session.get_inputs()}
def score(rows):
    feeds = {name: numpy.array([row[name] for row in rows], dtype=kind) for name, kind in types.items()}
    return session.run(["score"], feeds)[0].tolist()
"""
FASTAPI = (
    SESSION
    + """
import uvicorn
from fastapi import FastAPI
from pydantic import create_model
kinds = {object: str, numpy.int64: int, numpy.float64: float}
Row = create_model("Row", **{name: (kinds[kind], ...) for name, kind in types.items()})
Request = create_model("Request", rows=(list[Row], ...))
app = FastAPI()
@app.post("/score")
async def answer(request: Request):
    return {"scores": score([row.model_dump() for row in request.rows])}
uvicorn.run(app, port=int(sys.argv[2]), log_level="critical", access_log=False)
"""
)
LITSERVE = (
    SESSION
    + """
import litserve
class Api(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return request["rows"]
    def predict(self, rows): return score(rows)
    def encode_response(self, output): return {"scores": output}
if __name__ == "__main__":
    server = litserve.LitServer(Api(api_path="/score"), accelerator="cpu")
    server.run(port=int(sys.argv[2]), log_level="critical", access_log=False, generate_client_file=False)
"""
)
FIRST = """
import resource, sys
from lightning_mp.serve.scorer import Scorer
import json
score = Scorer.open(sys.argv[1]).score(json.loads(sys.argv[2])).score[0]
used = resource.getrusage(resource.RUSAGE_SELF)
assert "torch" not in sys.modules
with open("/proc/self/status") as file:  # `ru_maxrss` is that of the process that started this one
    held = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
print(json.dumps([used.ru_utime + used.ru_stime, held, float(score)]))
"""


def make_bundle(folder: Path) -> Bundle:
    rng, rows = np.random.default_rng(3), 5000
    words = {"user": Vocabulary(list(range(1, 20_000))), "item": Vocabulary([f"item-{n}" for n in range(5000)]),
             "device": Vocabulary(["mobile", "desktop", "app"])}  # fmt: skip
    roles = {"user": "user", "item": "item", "device": "context"}
    features = [
        Feature(name=name, kind="categorical" if name == "device" else "id", role=roles[name],
                source_dtype="string" if vocabulary.is_text else "int64", stored_dtype="int32",
                vocabulary_size=vocabulary.size, vocabulary_digest=vocabulary.digest)
        for name, vocabulary in words.items()
    ]  # fmt: skip
    features += [
        Feature(name=name, kind="numeric", role="item", source_dtype="double", stored_dtype="float16",
                missing="constant", missing_value=0.0)
        for name in ("price", "rating", "age", "clicks")
    ]  # fmt: skip
    columns = {name: rng.integers(0, vocabulary.size, rows) for name, vocabulary in words.items()}
    columns |= {feature.name: rng.normal(size=rows) for feature in features[3:]}
    store, table = FeatureStore(folder / "store"), pa.table(columns)
    parts = {"train": table[:1000], "test": table[1000:]}
    store.write(parts, schema=FeatureSchema(features=tuple(features)), vocabularies=words)
    return export_bundle(DCNv2(store.schema).eval(), folder / "bundle", store=store, precision="fp16-storage")


def requests(paths: str) -> list[bytes]:
    """A thousand requests of one row, as bytes on the wire."""
    rng, made = random.Random(5), []
    for _ in range(1000):
        row = {"user": rng.randrange(1, 20_000), "item": f"item-{rng.randrange(5000)}",
               "device": rng.choice(["mobile", "desktop", "app"]),
               **{name: rng.gauss(0, 1) for name in ("price", "rating", "age", "clicks")}}  # fmt: skip
        body: object = {"rows": [row]}
        if paths.endswith("infer"):
            kinds = {str: "BYTES", int: "INT64", float: "FP64"}
            body = {"inputs": [{"name": name, "shape": [1], "datatype": kinds[type(value)], "data": [value]}
                               for name, value in row.items()]}  # fmt: skip
        text = json.dumps(body).encode()
        head = f"POST {paths} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
        made.append(head.encode() + b"\r\n" + text)
    return made


class Connection(asyncio.Protocol):
    """One request at a time over a kept connection; `done` is called with whether it was answered with 200."""

    def __init__(self) -> None:
        self.left, self.done = b"", None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, request: bytes, done: Callable[[bool], None]) -> None:
        self.done = done
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.left += data
        head, mark, body = self.left.partition(b"\r\n\r\n")
        if not mark:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        size = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) >= size:
            self.left, done, self.done = b"", self.done, None
            done(head[9:12] == b"200")

    def connection_lost(self, _: Exception | None) -> None:
        if self.done is not None:
            done, self.done = self.done, None
            done(False)


async def connected(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(count)]


async def saturated(port: int, made: list[bytes], seconds: float) -> tuple[int, int]:
    """Answers and errors of connections that ask as fast as they are answered."""
    counts, end, finished = [0, 0], time.perf_counter() + seconds, asyncio.Event()
    lines = await connected(port, CONNECTIONS)
    left = len(lines)

    def again(line: Connection, number: int) -> Callable[[bool], None]:
        def done(fine: bool) -> None:
            nonlocal left
            counts[0 if fine else 1] += 1
            if time.perf_counter() < end and fine:
                line.ask(made[number % len(made)], again(line, number + CONNECTIONS))
            else:
                left -= 1
                if not left:
                    finished.set()

        return done

    for number, line in enumerate(lines):
        line.ask(made[number], again(line, number + CONNECTIONS))
    await finished.wait()
    for line in lines:
        line.transport.close()
    return counts[0], counts[1]


async def offered(port: int, made: list[bytes], seconds: float) -> tuple[list[float], int]:
    """Latencies in milliseconds of requests that a Poisson process sends, and errors."""
    loop, rng, taken, errors = asyncio.get_running_loop(), random.Random(), [], 0
    free, waiting, finished = await connected(port, 64), [], asyncio.Event()
    lines, moment, times = list(free), loop.time() + 0.05, []
    while moment < loop.time() + seconds:
        moment += rng.expovariate(RATE)
        times.append(moment)
    left = len(times)

    def send(number: int, meant: float) -> None:
        if not free:
            waiting.append((number, meant))
            return
        line = free.pop()

        def done(fine: bool) -> None:
            nonlocal left, errors
            taken.append((loop.time() - meant) * 1000)
            errors += not fine
            left -= 1
            free.append(line)
            if waiting:
                send(*waiting.pop(0))
            if not left:
                finished.set()

        line.ask(made[number % len(made)], done)

    for number, meant in enumerate(times):
        loop.call_at(meant, send, number, meant)
    await finished.wait()
    for line in lines:
        line.transport.close()
    return taken, errors


def cpu_seconds(process: int) -> float:
    """User and system time of a process and of those it started."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{process}/task").iterdir())
    except OSError:  # it has ended
        return 0.0
    children: list[str] = []
    for task in tasks:
        with suppress(OSError):  # a thread that has ended
            children += (task / "children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(int(child)) for child in children)


def start(command: list[str], port: int, request: bytes) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)  # LitServe starts others
    for _ in range(600):
        try:
            if asyncio.run(saturated(port, [request] * CONNECTIONS, 0.2))[0]:
                return process
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    stop(process)
    raise RuntimeError(f"`{' '.join(command[:4])[:80]}` does not answer")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and what it started: one that is left would answer in the next run."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--allow-missing", action="store_true", help="a peer that is not installed is no miss")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rounds, seconds = (1, 1.5) if options.quick else (5, 6.0)
    checks: list[dict[str, object]] = []

    def check(name: str, value: float | None, goal: str, ok: bool) -> None:
        checks.append({"name": name, "value": value, "goal": goal, "ok": bool(ok)})

    with tempfile.TemporaryDirectory() as place:
        bundle = make_bundle(Path(place))
        named, tensors, infer = requests("/score"), requests("/v2/models/bundle/infer"), "/v2/models/bundle/infer"
        code = {"echo": ECHO, "FastAPI and pydantic": FASTAPI, "LitServe": LITSERVE}
        needs = {"FastAPI and pydantic": "fastapi", "LitServe": "litserve"}
        for name, text in code.items():
            (Path(place) / f"{name.split()[0]}.py").write_text(text)
        running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
        rows: list[dict[str, object]] = []
        for name in ("lightning-mp serve", *code):
            if name in needs and find_spec(needs[name]) is None:
                rows.append({"server": name, "skipped": f"{needs[name]} is not installed"})
                check(f"{name} is there", None, "installed", options.allow_missing)
                continue
            port = free_port()
            command = [sys.executable, str(Path(place) / f"{name.split()[0]}.py"), str(bundle.path), str(port)]
            if name not in code:
                command = [sys.executable, "-m", "lightning_mp", "serve", str(bundle.path), "--port", str(port)]
            running[name] = start(command, port, named[0]), port
        asked = [(name, "named row", named) for name in running] + [
            ("lightning-mp serve", f"tensors, {infer}", tensors)
        ]
        seen: dict[tuple[str, str], dict[str, list[float]]] = {}
        try:
            for _ in range(rounds):
                for name, kind, made in asked:
                    process, port = running[name]
                    entry = seen.setdefault((name, kind), {key: [] for key in ("cpu", "rate", "p50", "p99", "errors")})
                    before, began = cpu_seconds(process.pid), time.perf_counter()
                    answers, failed = asyncio.run(saturated(port, made, seconds))
                    entry["cpu"].append((cpu_seconds(process.pid) - before) / max(answers, 1) * 1e6)
                    entry["rate"].append(answers / (time.perf_counter() - began))
                    taken, lost = asyncio.run(offered(port, made, seconds))
                    entry["p50"].append(float(np.quantile(taken, 0.5)))
                    entry["p99"].append(float(np.quantile(taken, 0.99)))
                    entry["errors"].append(failed + lost)
        finally:
            for process, _ in running.values():
                stop(process)
        for (name, kind), entry in seen.items():
            middle = {key: statistics.median(values) for key, values in entry.items()}
            told = {"cpu_us": round(middle["cpu"], 1), "per_second": round(middle["rate"])}
            told |= {"p50_ms": round(middle["p50"], 2), "p99_ms": round(middle["p99"], 2)}
            rows.append({"server": name, "request": kind, **told, "errors": int(sum(entry["errors"]))})
        once = [sys.executable, "-c", FIRST, str(bundle.path), '[{"user": 7, "item": "item-3"}]']
        first = [
            json.loads(subprocess.run(once, capture_output=True, check=True, text=True).stdout)
            for _ in range(3 if options.quick else 7)
        ]
    cpu, memory = (statistics.median(run[column] for run in first) for column in (0, 1))
    rows.append({"server": "first score, no server", "cpu_seconds": round(cpu, 3), "megabytes": round(memory, 1)})
    echo = next(row for row in rows if row["server"] == "echo")
    for row in rows:
        if row["server"] != "lightning-mp serve":
            continue
        kind, limit = (("named rows", 120), ("tensors", 80))[str(row["request"]).startswith("tensors")]
        check(f"{kind}: CPU a request", row["cpu_us"], f"<= {limit} us", row["cpu_us"] <= limit)
        ratio = round(row["p99_ms"] / echo["p99_ms"], 2)
        check(f"{kind}: p99 at {RATE}/s over the echo server's", ratio, "<= 2", ratio <= 2)
        check(f"{kind}: errors", row["errors"], "= 0", row["errors"] == 0)
    check("to the first score: CPU seconds", round(cpu, 3), "<= 0.3", cpu <= 0.3)
    check("to the first score: megabytes", round(memory, 1), "<= 75", memory <= 75)
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    for entry in checks:
        print(f"{'ok  ' if entry['ok'] else 'MISS'}  {entry['name']}: {entry['value']} (goal {entry['goal']})")
    if options.json:
        print(json.dumps({"benchmark": "serving", "machine": machine(), "checks": checks, "rows": rows}))
    return 1 if options.check and not all(entry["ok"] for entry in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
