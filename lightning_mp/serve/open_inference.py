"""The Open Inference Protocol, version 2: tensors of a request to columns, scores to tensors, metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lightning_mp.manifest import Datatype, Manifest, RawInput
from lightning_mp.serve.columns import checked_column, missing_value, shown, unknown_name
from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.scorer import Scores

_ACCEPTED: Final[dict[Datatype, tuple[str, ...]]] = {
    "BYTES": ("BYTES",),
    "INT64": ("INT64", "INT32", "INT16", "INT8", "UINT32", "UINT16", "UINT8"),
    "FP64": ("FP64", "FP32", "FP16", "INT64", "INT32", "INT16", "INT8", "UINT32", "UINT16", "UINT8"),
}
_SHAPE_HINT = "send shape [rows] or [rows, 1], the same rows for every input"
_WIDE_HINT = "send shape [rows, {}], the same rows for every input; null where a list is shorter"


def columns_of_tensors(
    inputs: tuple[RawInput, ...], request: dict[str, Any], *, max_rows: int
) -> tuple[dict[str, list[Any]], int]:
    """Turn the tensors of an inference request into one checked column an input.

    Args:
        inputs: What the model takes.
        request: The request's JSON object.
        max_rows: Rows that one request may carry.

    Returns:
        For every input one value a row, and the number of rows.

    Raises:
        RequestError: A tensor is malformed, unknown, given twice, of another length or type, or one that the model
            needs is missing.

    Source:
        Open Inference Protocol, version 2, section "Inference Request JSON Object".
    """
    tensors = request.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        raise RequestError(
            f"`inputs` is {shown(tensors)}, not a list of tensors",
            'send {"inputs": [{"name": ..., "shape": [1], "datatype": ..., "data": [...]}]}',
        )
    return _columns(inputs, tensors, max_rows)


def _columns(inputs: tuple[RawInput, ...], tensors: list[Any], max_rows: int) -> tuple[dict[str, list[Any]], int]:
    known = {spec.name: spec for spec in inputs}
    columns: dict[str, list[Any]] = {}
    rows: int | None = None
    for index, tensor in enumerate(tensors):
        name = tensor.get("name") if isinstance(tensor, dict) else None
        if not isinstance(name, str):
            raise RequestError(f"`inputs[{index}]` has no name", "send each tensor as an object with its `name`")
        if name not in known:
            raise unknown_name(name, list(known), place=f"inputs[{index}]")
        if name in columns:
            raise RequestError(f"`inputs[{index}]`: `{name}` is given twice", "send each input once")
        values = _values(known[name], tensor, index)
        rows = len(values) if rows is None else rows
        if len(values) != rows:
            raise RequestError(f"`inputs[{index}]`: `{name}` has {len(values)} rows, others have {rows}", _SHAPE_HINT)
        if rows > max_rows:
            raise too_many_rows(rows, max_rows)
        columns[name] = checked_column(known[name], values, place=f"inputs[{index}].data[{{}}]")
    count = rows or 0
    return {spec.name: columns.get(spec.name) or _absent(spec, count) for spec in inputs}, count


def _absent(spec: RawInput, rows: int) -> list[Any]:
    if spec.required and rows:
        raise RequestError(f"`inputs` lacks `{spec.name}`, and the model needs it", "send it")
    return [missing_value(spec)] * rows


def _values(spec: RawInput, tensor: dict[str, Any], index: int) -> list[object]:
    datatype, data, shape = tensor.get("datatype"), tensor.get("data"), tensor.get("shape")
    plain = datatype == spec.datatype and not spec.shape
    if plain and isinstance(data, list) and shape == [len(data)] and type(shape[0]) is int:  # as nearly all are
        return data
    place = f"`inputs[{index}]`: `{spec.name}`"
    if datatype not in _ACCEPTED[spec.datatype]:
        raise RequestError(f"{place} has datatype {shown(datatype)}", f"send it as `{spec.datatype}`")
    if not isinstance(data, list):
        raise RequestError(f"{place} has no list `data`", "send its values as JSON; binary tensors are not taken")
    if (
        not isinstance(shape, list)
        or not all(type(size) is int and size >= 0 for size in shape)
        or (spec.shape and (len(shape) != 2 or spec.shape[0] not in (-1, shape[1])))
        or (not spec.shape and (len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1)))
    ):
        width = "length" if spec.is_list else spec.shape[0] if spec.shape else 1
        raise RequestError(f"{place} has shape {shown(shape)}", _WIDE_HINT.format(width) if spec.shape else _SHAPE_HINT)
    if spec.shape:
        return _rows(data, shape, place)
    if len(shape) == 2 and data and all(type(row) is list and len(row) == 1 for row in data):
        data = [row[0] for row in data]
    if len(data) != shape[0]:
        raise RequestError(f"{place} has {len(data)} values for shape {shown(shape)}", _SHAPE_HINT)
    return data


def _rows(data: list[Any], shape: list[int], place: str) -> list[object]:
    """Values of a matrix, row by row; they may be nested or flat."""
    rows, width = shape
    if len(data) == rows and all(isinstance(row, list) for row in data):
        if all(len(row) == width for row in data):
            return list(data)
    elif len(data) == rows * width:
        return [data[row * width : (row + 1) * width] for row in range(rows)]
    raise RequestError(f"{place} does not have the values of shape {shown(shape)}", _WIDE_HINT.format(width))


def too_many_rows(rows: int, max_rows: int) -> RequestError:
    """The error for a request with more rows than one may carry."""
    return RequestError(f"{rows:,} rows in one request, {max_rows:,} may be", "send them in parts", status=413)


def tensors_of_scores(scores: Scores, *, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Scores as output tensors, in row-major order.

    Args:
        scores: What the model said.
        names: The outputs asked for, out of `logit` and `score`; of several tasks (rows, tasks), in the order of the
            metadata's `tasks`.
    """
    values = {"logit": scores.logit, "score": scores.score}
    return [
        {"name": name, "datatype": "FP32", "shape": list(values[name].shape), "data": values[name].reshape(-1)}
        for name in names
    ]


def by_task(values: object, tasks: Sequence[str]) -> list[dict[str, float]]:
    """Numbers (rows, tasks) as one object a row, by name of the task."""
    return [dict(zip(tasks, row, strict=True)) for row in values.tolist()]  # type: ignore[attr-defined]  # an array


def tensor_of_names(name: str, inputs: Sequence[RawInput], named: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Names of inputs by row as an output tensor, BOOL (rows, inputs): the columns are the metadata's inputs.

    Args:
        name: Of the output.
        inputs: What the model takes.
        named: For each row some of their names.
    """
    data = [spec.name in names for names in named for spec in inputs]
    return {"name": name, "datatype": "BOOL", "shape": [len(named), len(inputs)], "data": data}


def requested_outputs(
    request: dict[str, Any], *, outputs: tuple[str, ...], on_demand: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Names of the outputs that a request asks for.

    Args:
        request: The request's JSON object.
        outputs: What it gets when it asks for nothing.
        on_demand: What it gets only when it asks.

    Raises:
        RequestError: It names one that there is not.
    """
    asked = request.get("outputs")
    if asked is None or asked == []:
        return outputs
    if not isinstance(asked, list) or not all(isinstance(entry, dict) for entry in asked):
        raise RequestError(
            f"`outputs` is {shown(asked)}, not a list of objects", 'send [{"name": "score"}], or nothing'
        )
    for entry in asked:
        if entry.get("name") not in (*outputs, *on_demand):
            raise RequestError(
                f"`outputs`: {shown(entry.get('name'))} is not an output of this model",
                f"ask for {' or '.join(f'`{name}`' for name in (*outputs, *on_demand))}",
            )
    return tuple(entry["name"] for entry in asked)


def model_metadata(manifest: Manifest, *, name: str) -> dict[str, Any]:
    """What `GET /v2/models/{name}` answers.

    Source:
        Open Inference Protocol, version 2, section "Model Metadata Response JSON Object".
    """
    columns = [len(manifest.tasks)] if manifest.tasks else []
    told = {"tasks": list(manifest.tasks)} if manifest.tasks else {}
    return {
        "name": name,
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [
            {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]} for spec in manifest.inputs
        ],
        "outputs": [{"name": output, "datatype": "FP32", "shape": [-1, *columns]} for output in manifest.outputs],
        "properties": {"task": manifest.task, "schema_digest": manifest.schema.digest, **told},
    }
