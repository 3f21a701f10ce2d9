"""Which execution providers ONNX Runtime really has here, and where it really puts the nodes of a session."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

CPU: Final = "CPUExecutionProvider"
_RECORD: Final = "session.record_ep_graph_assignment_info"
_ADDITION: Final = (
    b'\x08\n:5\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x14"
)
"""An ONNX file (IR 10, opset 20) of one node, y = x + x on float32 of shape (1,): every provider can add."""


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
        reason: Why not, in ONNX Runtime's words; empty when it runs or ONNX Runtime said nothing.
    """

    name: str
    device: bool
    loaded: bool
    runs: bool
    reason: str = ""

    @classmethod
    def read(cls, name: str) -> Provider:
        """Ask for one provider and see what comes of it: a session with one addition is made.

        Args:
            name: As ONNX Runtime spells it. It must be compiled in: ask `compiled_in`.
        """
        import onnxruntime as ort

        device = any(entry.ep_name == name for entry in ort.get_ep_devices())
        options = recording(ort.SessionOptions())
        options.log_severity_level = 4
        try:
            session = ort.InferenceSession(_ADDITION, options, providers=[name])
        except Exception as error:
            return cls(name=name, device=device, loaded=False, runs=False, reason=first_line(error))
        loaded = name in session.get_providers()
        runs = placement(session).get(name, 0) > 0
        return cls(name=name, device=device, loaded=loaded, runs=runs, reason="" if runs else why_not(name))


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


def why_not(name: str) -> str:
    """What ONNX Runtime prints when it fails to load a provider, such as the library that is missing.

    It writes this to the process's error stream and nowhere else, so a second interpreter is asked.
    """
    code = (
        "import sys, onnxruntime as ort\n"
        f"ort.InferenceSession({_ADDITION!r}, ort.SessionOptions(), providers=[sys.argv[1]])"
    )
    try:
        run = subprocess.run(
            [sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line.strip() for line in run.stderr.splitlines() if "error" in line.lower()]
    return first_line(lines[0]) if lines else ""


def first_line(error: object) -> str:
    """First line of an error's text, without colour codes, at most 300 characters."""
    text = str(error).replace("\x1b[1;31m", "").replace("\x1b[m", "").strip()
    return text.splitlines()[0][:300] if text else ""
