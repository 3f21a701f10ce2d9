"""Which execution providers ONNX Runtime really has here, and where it really puts the nodes of a session."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

CPU: Final = "CPUExecutionProvider"
_RECORD: Final = "session.record_ep_graph_assignment_info"
_ADDITION: Final = (
    b'\x08\n:5\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x14"
)
"""An ONNX file (IR 10, opset 20) of one node, y = x + x on float32 of shape (1,): every provider can add."""

_QUESTION: Final = f"""
import json, sys
import onnxruntime as ort
name = sys.argv[1]
options = ort.SessionOptions()
options.add_session_config_entry({_RECORD!r}, "1")
session = ort.InferenceSession({_ADDITION!r}, options, providers=[name])
placed = {{group.ep_name for group in session.get_provider_graph_assignment_info()}}
print(json.dumps({{"loaded": name in session.get_providers(), "runs": name in placed}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The truth about one execution provider.

    `onnxruntime.get_available_providers` says only what was compiled in: with `onnxruntime-gpu` on a machine
    without CUDA it lists CUDA, a session is made without a Python warning, and everything runs on the CPU.

    Args:
        name: As ONNX Runtime spells it.
        device: Whether ONNX Runtime sees hardware for it.
        loaded: Whether a session that asks for it gets it.
        runs: Whether a node was really placed on it.
        reason: Why it does not run, in ONNX Runtime's words, such as the library that is missing; empty when it
            runs, or when ONNX Runtime gave no reason.

    Example:
        >>> Provider.read("CPUExecutionProvider").runs
        True
    """

    name: str
    device: bool
    loaded: bool
    runs: bool
    reason: str = ""

    @classmethod
    def read(cls, name: str) -> Provider:
        """Make a session of one addition on the provider and see what comes of it.

        A second interpreter does it: a broken provider can end its process, and ONNX Runtime writes the reason
        to the error stream and nowhere else.

        Args:
            name: As ONNX Runtime spells it.
        """
        import onnxruntime as ort

        device = any(entry.ep_name == name for entry in ort.get_ep_devices())
        try:
            run = subprocess.run(
                [sys.executable, "-c", _QUESTION, name], capture_output=True, text=True, timeout=120, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return cls(name=name, device=device, loaded=False, runs=False, reason=first_line(error))
        try:
            found = json.loads(run.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            found = {"loaded": False, "runs": False}
        reason = "" if found["runs"] else _reason(run.stderr)
        return cls(name=name, device=device, loaded=found["loaded"], runs=found["runs"], reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def compiled_in() -> tuple[str, ...]:
    """Names of the providers that this build of ONNX Runtime holds; it says nothing about whether they work."""
    import onnxruntime as ort

    return tuple(ort.get_available_providers())


def recording(options: Any) -> Any:
    """Session options that make ONNX Runtime note where it places each node; `placement` reads it."""
    options.add_session_config_entry(_RECORD, "1")
    return options


def placement(session: Any) -> dict[str, int]:
    """Nodes of a session by the provider that runs them, after optimisation.

    Args:
        session: An `onnxruntime.InferenceSession` whose options went through `recording`.
    """
    counts: Counter[str] = Counter()
    for group in session.get_provider_graph_assignment_info():
        counts[group.ep_name] += len(group.get_nodes())
    return dict(counts)


def first_line(error: object) -> str:
    """First line of an error's text, at most 300 characters."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else ""


def _reason(stderr: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stderr)
    found = re.search(r"with error: (.+)", plain) or re.search(r".*(?:Error|FAIL).*", plain)
    return first_line(found.group(found.lastindex or 0)) if found else ""
