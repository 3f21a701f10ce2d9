"""`pipeline.onnx`: raw named values to logit and score, the encoder and the model in one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lightning_mp.export.encoder_graph import DENSE, IDS

PREFIX: Final = "model/"
"""Of the names that `model.onnx` has, inside `pipeline.onnx`."""


def write_pipeline(encoder: Any, core: Path, path: Path) -> None:
    """Join the encoder and `model.onnx`; weights in a file beside `model.onnx` are shared, not copied.

    Args:
        encoder: An `onnx.ModelProto` as `encoder_graph` gives it.
        core: The model, in the folder that `path` lies in.
        path: The file to write.
    """
    import onnx

    model = onnx.load(str(core), load_external_data=False)
    joints = {entry.name: source for entry, source in _sources(model)}
    merged = onnx.compose.merge_models(
        encoder, model, io_map=[(source, name) for name, source in joints.items()], prefix2=PREFIX,
        name="pipeline", producer_name="lightning_mp",
    )  # fmt: skip
    for output in merged.graph.output:
        output.name = output.name.removeprefix(PREFIX)
    outputs = {f"{PREFIX}{output.name}": output.name for output in merged.graph.output}
    for node in merged.graph.node:
        for names in (node.input, node.output):
            names[:] = [outputs.get(name, name) for name in names]
    path.write_bytes(merged.SerializeToString())
    onnx.checker.check_model(str(path), full_check=True)


def _sources(model: Any) -> list[tuple[Any, str]]:
    encoded = {"ids": IDS, "dense": DENSE}
    return [(entry, encoded[entry.name]) for entry in model.graph.input]
