"""ScoringApp: the ASGI application over one bundle."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lightning_mp.errors import ConfigurationError
from lightning_mp.optional import require
from lightning_mp.serve.body import Message, discard_body, read_body
from lightning_mp.serve.columns import shown
from lightning_mp.serve.micro_batching import MicroBatcher
from lightning_mp.serve.open_inference import (
    by_task,
    columns_of_tensors,
    model_metadata,
    requested_outputs,
    tensor_of_names,
    tensors_of_scores,
    too_many_rows,
)
from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.rows import columns_of_rows
from lightning_mp.serve.scorer import Scorer
from lightning_mp.serve.unread import missing_names, unknown_names

_LOG = logging.getLogger(__name__)
_EXTRA_HEADERS: Final[dict[int, list[tuple[bytes, bytes]]]] = {
    413: [(b"connection", b"close")],
    415: [(b"connection", b"close")],
    503: [(b"retry-after", b"1")],
}


class ScoringApp:
    """Answers `POST /score` with named rows and the Open Inference Protocol, version 2.

    A model of several tasks answers `/score` with an object a row, `{task: number}`.

    Every reply is strict JSON; what is wrong with a request is told as `{"error": ..., "hint": ...}` with a 4xx
    status. Of a name that stands twice in one JSON object the last value counts.

    Args:
        scorer: What scores.
        name: The model's name in `/v2/models/{name}`.
        max_body_bytes: Longest body; a longer one is thrown away, refused with 413, and its connection closed.
        max_rows: Rows that one request may carry.
        max_queued_rows: Rows that may wait over all requests; beyond them the reply is 503.

    Raises:
        ConfigurationError: The name is empty or holds a slash.
        MissingExtraError: orjson is not installed.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        name: str = "model",
        max_body_bytes: int = 8 * 2**20,
        max_rows: int = 4096,
        max_queued_rows: int = 16384,
    ) -> None:
        if not name or "/" in name:
            raise ConfigurationError(f"`name` cannot be {name!r}: it is one part of a URL", "give a name without `/`")
        self._json = require("orjson", "serve")
        self._inputs, self._outputs = scorer.inputs, scorer.manifest.outputs
        self._completed, self._tasks = scorer.completed, scorer.tasks
        self._indexed = scorer.indexed
        self._on_demand = ("unknown", "missing") if scorer.tells_unknown else ("missing",)
        self._batcher = MicroBatcher(scorer, max_queued_rows=max_queued_rows)
        self._max_body_bytes, self._max_rows = max_body_bytes, max_rows
        self._name = name
        model = f"/v2/models/{name}"
        version = scorer.manifest.versions.get("lightning_mp", "")
        self._documents: dict[str, object] = {
            "/v2/health/live": {"live": True},
            "/v2/health/ready": {"ready": True},
            "/v2": {"name": "lightning_mp", "version": version, "extensions": []},
            f"{model}/ready": {"name": name, "ready": True},
            model: model_metadata(scorer.manifest, name=name),
        }
        self._scoring: dict[str, Callable[[dict[str, Any]], Awaitable[object]]] = {
            "/score": self._score,
            f"{model}/infer": self._infer,
        }

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request; the arguments are ASGI's."""
        if scope["type"] != "http":
            return
        headers: list[tuple[bytes, bytes]] = []
        answer: object
        unread = False
        try:
            status, answer = 200, await self._answer(scope, receive)
            if answer is None:
                return
        except RequestError as error:
            status, answer = error.status, {"error": error.problem, "hint": error.hint}
            unread = error.unread
            headers = _EXTRA_HEADERS.get(status, [])
            if status == 405:
                headers = [(b"allow", b"POST" if scope["path"] in self._scoring else b"GET, HEAD")]
        except Exception as error:  # a fault of ours must not reach the client as a traceback
            _LOG.error(
                "%s %s: %s: %s", scope["method"], scope["path"], type(error).__name__, " ".join(str(error).split())
            )
            status, answer = 500, {"error": f"the server failed: {type(error).__name__}", "hint": "see its log"}
        body = self._json.dumps(answer, option=self._json.OPT_SERIALIZE_NUMPY)
        sizes = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, *sizes]})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": unread}
        )
        if unread:  # the reply is out; the connection is closed when the sender had time to read it
            await discard_body(scope, receive)
            await send({"type": "http.response.body", "body": b""})

    async def _answer(self, scope: Message, receive: Callable[[], Awaitable[Message]]) -> object:
        path, method = scope["path"], scope["method"]
        scoring = self._scoring.get(path)
        if scoring is None:
            document = self._documents.get(path)
            if document is None:
                known = ", ".join([*self._scoring, *self._documents])
                raise RequestError(f"there is nothing at {shown(path)}", f"there are {known}", status=404)
            if method not in ("GET", "HEAD"):
                raise RequestError(f"`{path}` does not take {method}", "use GET", status=405)
            return document
        if method != "POST":
            raise RequestError(f"`{path}` does not take {method}", "use POST", status=405)
        body = await read_body(scope, receive, max_bytes=self._max_body_bytes)
        if body is None:
            return None
        try:
            request = self._json.loads(body)
        except ValueError as error:
            raise RequestError(f"the body is not JSON: {error}", 'send a JSON object: {"rows": [...]}') from error
        if not isinstance(request, dict):
            raise RequestError(f"the body is {shown(request)}, not an object", "send a JSON object")
        return await scoring(request)

    async def _score(self, request: dict[str, Any]) -> object:
        if request.keys() != {"rows"}:
            found = next((name for name in request if name != "rows"), None)
            problem = "the body lacks `rows`" if found is None else f"the body holds {shown(found)}"
            raise RequestError(problem, 'send {"rows": [{"<name>": <value>, ...}, ...]} and nothing else')
        rows = request["rows"]
        if isinstance(rows, list) and len(rows) > self._max_rows:
            raise too_many_rows(len(rows), self._max_rows)
        columns = columns_of_rows(self._inputs, self._completed(rows))
        scores = await self._batcher.score(columns, len(rows))
        reply: dict[str, object] = {"scores": scores.score, "logits": scores.logit}
        if self._tasks:
            reply = {name: by_task(values, self._tasks) for name, values in reply.items()}
        if scores.unknown is not None:
            reply["unknown"] = unknown_names(self._indexed, scores.unknown)
        reply["missing"] = missing_names(self._inputs, columns, len(rows))
        return reply

    async def _infer(self, request: dict[str, Any]) -> object:
        label = request.get("id")
        if label is not None and not isinstance(label, str):
            raise RequestError(f"`id` is {shown(label)}, not a text", "send a JSON string, or no `id`")
        asked = requested_outputs(request, outputs=self._outputs, on_demand=self._on_demand)
        columns, rows = columns_of_tensors(self._inputs, request, max_rows=self._max_rows)
        scores = await self._batcher.score(columns, rows)
        outputs = []
        for name in asked:
            if name in self._outputs:
                outputs += tensors_of_scores(scores, names=(name,))
            elif name == "missing":
                outputs.append(tensor_of_names(name, self._inputs, missing_names(self._inputs, columns, rows)))
            elif scores.unknown is not None:
                outputs.append(tensor_of_names(name, self._inputs, unknown_names(self._indexed, scores.unknown)))
        reply = {"model_name": self._name, "model_version": "1", "outputs": outputs}
        return reply if label is None else {**reply, "id": label}
