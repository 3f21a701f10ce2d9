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


def check_precision(
    path: Path, halved: frozenset[str], *, arithmetic: bool = False, weights: frozenset[str] = frozenset()
) -> None:
    """Refuse a `model.onnx` whose number formats are others than the policy's.

    Args:
        path: The file.
        halved: Initializers that are to be float16, and the only ones that may be.
        arithmetic: Whether nodes may compute in float16, with constants of that type.
        weights: Names of all weights, which are told from constants by them where `arithmetic` is true.

    Raises:
        ConfigurationError: A node casts to float16 or bfloat16 and may not, or an initializer is of another type.
    """
    import onnx

    forbidden = ("BFLOAT16",) if arithmetic else _HALF
    for node in _load(path).graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and onnx.TensorProto.DataType.Name(attribute.i) in forbidden:
                raise ConfigurationError(
                    f"node `{node.name}` casts to {onnx.TensorProto.DataType.Name(attribute.i)}: `forward` opens an "
                    "autocast region of its own, or casts by itself",
                    "leave autocast to the Trainer's precision plugin",
                )
    for name, kind in initializer_types(path).items():
        if kind == "FLOAT" and name in halved:
            raise ConfigurationError(
                f"policy says `{name}` is FLOAT16, initializer `{name}` in `{path.name}` is FLOAT",
                "report this: the exporter did not keep the module's types",
            )
        if kind == "BFLOAT16" or (kind == "FLOAT16" and name not in halved and (name in weights or not arithmetic)):
            raise ConfigurationError(
                f"initializer `{name}` is {kind} in the exported graph, and the policy computes with it in float32",
                "let `forward` make its constants in float32, without an autocast region of its own",
            )


def _load(path: Path) -> Any:
    import onnx

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's error, whose class depends on its implementation
        raise BundleError(f"`{path}` is not an ONNX model", "copy it again, or export the model again") from error
