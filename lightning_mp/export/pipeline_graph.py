"""`pipeline.onnx`: raw named values to logit, score and what was unknown, the encoder and the model in one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lightning_mp.export.encoder_graph import ENCODED
from lightning_mp.export.raw_features import UNKNOWN

PREFIX: Final = "model/"
"""Of the names that `model.onnx` has, inside `pipeline.onnx`."""
_OUTPUTS: Final = ("logit", "score")


def write_pipeline(encoder: Any, core: Path, path: Path) -> None:
    """Join the encoder and `model.onnx`; weights in a file beside `model.onnx` are shared, not copied.

    `onnx.compose.merge_models` does nearly this, but looks for that file in the working directory.

    Args:
        encoder: An `onnx.ModelProto` as `encoder_graph` gives it.
        core: The model, in the folder that `path` lies in.
        path: The file to write.
    """
    import onnx

    model, merged = onnx.load(str(core), load_external_data=False), onnx.ModelProto()
    merged.CopyFrom(encoder)
    joints = {entry.name: f"{ENCODED}{entry.name}" for entry in model.graph.input}
    _rename(model.graph, {**joints, **{name: name for name in _OUTPUTS}})
    graph = merged.graph
    graph.name = "pipeline"
    graph.node.extend(model.graph.node)
    graph.initializer.extend(model.graph.initializer)
    told = [output for output in encoder.graph.output if output.name == UNKNOWN]
    del graph.output[:]
    graph.output.extend([*model.graph.output, *told])
    merged.functions.extend(model.functions)
    there = {opset.domain for opset in merged.opset_import}
    merged.opset_import.extend(opset for opset in model.opset_import if opset.domain not in there)
    merged.ir_version = max(encoder.ir_version, model.ir_version)
    path.write_bytes(merged.SerializeToString())
    onnx.checker.check_model(str(path), full_check=True)


def _rename(graph: Any, fixed: dict[str, str]) -> None:
    """Put `PREFIX` before every name of a graph and of the graphs inside its nodes, but for those in `fixed`."""

    def renamed(name: str) -> str:
        return fixed.get(name, f"{PREFIX}{name}") if name else ""  # an empty name is an input left out

    for entries in (graph.input, graph.output, graph.initializer, graph.value_info):
        for entry in entries:
            entry.name = renamed(entry.name)
    for node in graph.node:
        node.name = f"{PREFIX}{node.name}"
        for names in (node.input, node.output):
            names[:] = [renamed(name) for name in names]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                _rename(inner, fixed)
