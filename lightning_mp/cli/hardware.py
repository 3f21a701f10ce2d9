"""`lightning-mp hardware`: what this machine can do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.hardware.facts import Hardware
from lightning_mp.hardware.providers import CPU, Provider, compiled_in


def main(argv: Sequence[str]) -> int:
    """Show processor, memory, GPUs, and ONNX Runtime's providers with the truth about each.

    Args:
        argv: Arguments after `hardware`.

    Returns:
        0.
    """
    parser = CommandParser("hardware", "Show what this machine can do.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    hardware, providers = Hardware.read(), [Provider.read(name) for name in compiled_in()]
    tf32 = _tf32()
    if options.json:
        versions = {name: _version(name) for name in ("onnxruntime", "onnxruntime-gpu", "torch", "onnx")}
        record = {**hardware.to_dict(), "providers": [p.to_dict() for p in providers], "versions": versions,
                  "tf32": tf32}  # fmt: skip
        print(json.dumps(record, indent=2))
        return 0
    _show(hardware, providers, tf32)
    return 0


def _show(hardware: Hardware, providers: Sequence[Provider], tf32: dict[str, str] | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("what", "this machine", title="Hardware", title_justify="left")
    table.add_row("processor", escape(f"{hardware.cpu}, {hardware.machine}, {hardware.cores} cores for this process"))
    table.add_row("memory", f"{hardware.memory_bytes / 2**30:.1f} GiB")
    table.add_row("instructions", ", ".join(hardware.cpu_flags) or "none of those that matter here")
    table.add_row("float16 on the CPU", _words(hardware.cpu_float16, "arithmetic", "conversions only"))
    table.add_row("bfloat16 on the CPU", _words(hardware.cpu_bfloat16, "products", "emulated"))
    for gpu in hardware.gpus:
        formats = [name for name in ("float16", "bfloat16", "tf32") if getattr(gpu, name)]
        capability = ".".join(map(str, gpu.capability))
        memory = f"{gpu.memory_bytes / 2**30:.1f} GiB"
        table.add_row("GPU", escape(f"{gpu.name}, capability {capability}, {memory}, driver {gpu.driver}"))
        table.add_row("", f"tensor cores for {', '.join(formats) or 'none of float16, bfloat16, TF32'}")
    if not hardware.gpus:
        table.add_row("GPU", "no NVIDIA GPU")
    table.add_row("TF32 in torch", _tf32_words(tf32))
    for provider in providers:
        table.add_row(escape(provider.name), escape(_verdict(provider)))
    Console(soft_wrap=False).print(table)


def _verdict(provider: Provider) -> str:
    if provider.runs:
        note = "; it computes float16 as float32, and has no bfloat16 arithmetic" if provider.name == CPU else ""
        return f"runs{note}"
    loaded = "loaded, but no node is placed on it" if provider.loaded else "listed, but does not load"
    return f"{loaded}{f': {provider.reason}' if provider.reason else ''}"


def _tf32() -> dict[str, str] | None:
    try:
        from lightning_mp.precision.tf32 import tf32_state
    except ImportError:  # where bundles are served there is no torch
        return None
    return tf32_state()


def _tf32_words(state: dict[str, str] | None) -> str:
    if state is None:
        return "torch is not installed"
    return ", ".join(f"{name}: {value}" for name, value in state.items())


def _words(yes: bool, positive: str, negative: str) -> str:
    return positive if yes else negative


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
