"""A graph in the making: its nodes and its constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class GraphNodes:
    """Nodes and constants of a graph that is being made.

    It begins with a few constants: `encoded/axis` ([1]), `encoded/last` ([-1]), `encoded/zero` and `encoded/one`
    (double), `encoded/first_row` (int64, 0).

    Attributes:
        nodes: `onnx.NodeProto`, in the order they were added.
        constants: `onnx.TensorProto`.
    """

    def __init__(self) -> None:
        from onnx import NodeProto, TensorProto

        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.constant(np.array([1], dtype=np.int64), "encoded/axis")
        self.constant(np.array([-1], dtype=np.int64), "encoded/last")
        self.constant(np.array(0.0), "encoded/zero")
        self.constant(np.array(1.0), "encoded/one")
        self.constant(np.array(0, dtype=np.int64), "encoded/first_row")

    def add(self, operator: str, inputs: list[str], output: str, attributes: Mapping[str, Any] | None = None) -> str:
        """Add a node and name its output."""
        from onnx import helper

        domain = "ai.onnx.ml" if operator == "LabelEncoder" else ""
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=output, domain=domain, **(attributes or {}))
        )
        return output

    def constant(self, value: np.ndarray[Any, Any], name: str) -> str:
        """Add a constant and name it."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(value, name))
        return name
