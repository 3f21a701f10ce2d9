"""`model.onnx`: encoded inputs to logit and score, from a module in float32."""

from __future__ import annotations

import io
import logging
import warnings
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.export.task_names import told_tasks

OPSET: Final = 20
EXTERNAL_FROM: Final = 64 << 20
"""Weights of more bytes than this stand in a file of their own, which processes map and share."""
_PREFIX: Final = "module."
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_NOISY: Final = (
    "torch.onnx._internal.exporter._registration",
    "torch.onnx._internal.exporter._core",
    "torch.fx.experimental.symbolic_shapes",
)


class Scorer(nn.Module):
    """A module with positional inputs whose names are ours, unknown ids sent to row 0, and both outputs.

    Args:
        module: `forward(batch) -> logits`, in float32. Its `score(logits)` makes the score; without one, the sigmoid.
        names: Keys of the batch, in the order of the arguments.
        sizes: Vocabulary sizes of the inputs that hold ids, by name, in a shape that broadcasts with a row.
    """

    def __init__(self, module: nn.Module, names: Sequence[str], sizes: Mapping[str, Sequence[Any]]) -> None:
        super().__init__()
        self.module = module
        self.names = tuple(names)
        self.guarded = tuple(name for name in names if name in sizes)
        for name in self.guarded:
            self.register_buffer(f"sizes_{name}", torch.tensor(list(sizes[name]), dtype=torch.int64))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Logit and score, both float32."""
        batch = dict(zip(self.names, tensors, strict=True))
        for name in self.guarded:
            # Without this, -1 and ids of the next table silently read another row in ONNX Runtime.
            ids = batch[name]
            outside = (ids < 0) | (ids >= getattr(self, f"sizes_{name}"))
            batch[name] = torch.where(outside, torch.zeros_like(ids), ids)
        logit: Tensor = self.module(batch)
        score: Tensor = getattr(self.module, "score", torch.sigmoid)(logit)
        return logit, score


def write_core(
    module: nn.Module, sizes: Mapping[str, Sequence[Any]], sample: Mapping[str, Tensor], path: Path
) -> dict[str, str]:
    """Write `model.onnx`.

    Args:
        module: As `inference_copy` gives it: `forward(batch) -> logits`, float32.
        sizes: Vocabulary size of each column of the inputs that hold ids; ids outside of theirs are read as 0.
        sample: A few encoded rows by name of the input, such as `ids` (B, F) int64 and `dense` (B, D) float32; B >= 2.
        path: The file to write; weights of more than 64 MB go to a file beside it.

    Returns:
        For every value inside the graph the name of the innermost module that computes it; the module itself is `""`.

    Raises:
        ConfigurationError: torch cannot export the module, or it answers something else than one logit a row, or one a
            row and task.
    """
    import onnx

    scorer = Scorer(module, tuple(sample), sizes).eval()
    _check_answer(scorer, sample)
    axes = tuple({0: "batch"} for _ in sample)
    try:
        # A caller's autocast would be traced into the graph, and its casts stay there.
        with _quiet(), torch.autocast("cpu", enabled=False):
            program = torch.onnx.export(
                scorer, tuple(sample.values()), dynamo=True, opset_version=OPSET, verbose=False,
                input_names=list(sample), output_names=["logit", "score"], dynamic_shapes=(axes,),
            )  # fmt: skip
    except Exception as error:
        raise ConfigurationError(
            f"torch cannot export `{type(module).__name__}`: {_deepest(error)}",
            "keep Python control flow on tensor values, and NumPy, out of `forward`",
        ) from error
    if program is None:
        raise ConfigurationError(f"torch gave no ONNX program for `{type(module).__name__}`", "update torch")
    # Counted as float32: a table of half the size must not move back into the file, where it cannot be mapped.
    size = sum(tensor.numel() * max(tensor.element_size(), 4) for tensor in scorer.state_dict().values())
    with _quiet():
        program.save(str(path), external_data=size > EXTERNAL_FROM)
    model = onnx.load(str(path), load_external_data=False)
    homes = _homes(model, module)
    _clean(model)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path), full_check=True)
    return homes


def _check_answer(scorer: Scorer, sample: Mapping[str, Tensor]) -> None:
    rows = len(next(iter(sample.values())))
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        answers = scorer(*sample.values())
    for name, answer in zip(("logit", "score"), answers, strict=True):
        wide = answer.dim() == 2 and (answer.shape[1] > 1 or len(told_tasks(scorer.module)) == answer.shape[1] == 1)
        fits = answer.shape == (rows,) or (wide and answer.shape == (rows, answers[0].shape[-1]))
        if not fits or answer.dtype != torch.float32:
            raise ConfigurationError(
                f"`{type(scorer.module).__name__}`: {name} of {rows} rows is {tuple(answer.shape)} {answer.dtype}",
                f"return one float32 number a row, shape ({rows},), or one a row and task, ({rows}, tasks)",
            )


def _homes(model: Any, module: nn.Module) -> dict[str, str]:
    """The innermost module of each value, from what the exporter notes about a node."""
    names = {f"{_PREFIX}{name}" for name, _ in module.named_modules() if name}
    homes: dict[str, str] = {}
    for node in model.graph.node:
        noted = [entry.value for entry in node.metadata_props if entry.key == _SCOPES]
        scopes = [scope for scope in (literal_eval(noted[0]) if noted else []) if scope in names]
        for value in node.output:
            homes[value.removeprefix(_PREFIX)] = scopes[-1].removeprefix(_PREFIX) if scopes else ""
    return homes


def _clean(model: Any) -> None:
    """Drop what the exporter notes about its own workings, and paths of the machine it ran on."""
    graph = model.graph
    del model.metadata_props[:]
    for entries in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
        for entry in entries:
            del entry.metadata_props[:]
            entry.doc_string = ""
    del graph.value_info[:]
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name.removeprefix(_PREFIX) for name in names]
    for tensor in graph.initializer:
        tensor.name = tensor.name.removeprefix(_PREFIX)
    graph.name = "model"
    model.producer_name = "lightning_mp"


def _deepest(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what torch's exporter prints, logs and warns of: all of it is about itself."""

    def silence(_: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in _NOISY]
    for logger in loggers:
        logger.addFilter(silence)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")
            warnings.filterwarnings("ignore", category=UserWarning, message=r".*The axis name: batch will not be used")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(silence)
