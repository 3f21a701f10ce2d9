"""Which number format each weight of an ONNX file really has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lightning_mp.errors import BundleError, ConfigurationError

_HALF: Final = ("FLOAT16", "BFLOAT16")


def initializer_types(path: Path) -> dict[str, str]:
    """ONNX's name of the type of every initializer of a file, by name; weights in another file are not read.

    Raises:
        BundleError: The file is not an ONNX model.
    """
    import onnx

    graph = _load(path).graph
    return {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer}


def refuse_half_arithmetic(path: Path, tables: frozenset[str]) -> None:
    """Refuse a `model.onnx` that computes in half precision, or stores more than `tables` so.

    Args:
        path: The file.
        tables: Initializers that may be float16.

    Raises:
        ConfigurationError: A node casts to float16 or bfloat16, or another initializer is half precision.
    """
    import onnx

    for node in _load(path).graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and onnx.TensorProto.DataType.Name(attribute.i) in _HALF:
                raise ConfigurationError(
                    f"node `{node.name}` casts to {onnx.TensorProto.DataType.Name(attribute.i)}: `forward` opens an "
                    "autocast region of its own, or casts by itself",
                    "leave autocast to the Trainer's precision plugin",
                )
    for name, kind in initializer_types(path).items():
        if kind in _HALF and name not in tables:
            raise ConfigurationError(
                f"initializer `{name}` is {kind} in the exported graph, and the policy computes in float32",
                "let `forward` make its constants in float32, without an autocast region of its own",
            )


def _load(path: Path) -> Any:
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's error, whose class depends on its implementation
        raise BundleError(f"`{path}` is not an ONNX model", "copy it again, or export the model again") from error
