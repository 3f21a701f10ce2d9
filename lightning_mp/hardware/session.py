"""Open an ONNX file where it was meant to run, or say that it would not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

from lightning_mp.errors import BundleError, EnvironmentMismatchError, LightningMPWarning
from lightning_mp.hardware.providers import CPU, Provider, compiled_in, first_line, placement, recording

Target = Literal["this", "cpu"]
_CUDA = "CUDAExecutionProvider"


def open_session(
    model_path: str | Path,
    target: Target = "this",
    on_fallback: Literal["error", "warn"] = "error",
    *,
    tf32: bool = False,
    optimise: bool = True,
) -> Any:
    """Open an ONNX file on this machine; a provider that was meant to run it and does not is an error.

    One thread computes and none spins: a recommender's request takes tens of microseconds, and a process a core
    serves more of them than threads do.

    Args:
        model_path: The file.
        target: `"this"`: the GPU if this build of ONNX Runtime has CUDA, else the processor; `"cpu"`: the processor.
        on_fallback: What happens when a GPU build would silently compute on the processor.
        tf32: Whether a GPU may multiply float32 matrices in TF32, faster and to three digits. ONNX Runtime's own
            default is yes; here it is no, as parity is measured without.
        optimise: Whether ONNX Runtime may fuse and fold nodes.

    Returns:
        An `onnxruntime.InferenceSession`; `lightning_mp.hardware.providers.placement` says where its nodes are.

    Raises:
        BundleError: The file, or the `.data` file beside it, is missing or damaged.
        EnvironmentMismatchError: The GPU's provider was compiled in, and did not load or got no node.
    """
    wanted = _CUDA if target == "this" and _CUDA in compiled_in() else CPU
    return open_on(model_path, wanted, on_fallback, tf32=tf32, optimise=optimise)


def open_on(
    model_path: str | Path,
    provider: str,
    on_fallback: Literal["error", "warn"] = "error",
    *,
    tf32: bool = False,
    optimise: bool = True,
) -> Any:
    """Open an ONNX file on one provider; see `open_session`.

    Args:
        model_path: The file.
        provider: Name of the provider, as ONNX Runtime spells it; the processor takes what it cannot.
        on_fallback: What happens when the processor takes everything.
        tf32: Whether a GPU may multiply float32 matrices in TF32.
        optimise: Whether ONNX Runtime may fuse and fold nodes.

    Raises:
        BundleError: The file, or the `.data` file beside it, is missing or damaged.
        EnvironmentMismatchError: The provider is not compiled in, did not load, or got no node.
    """
    import onnxruntime as ort

    path = Path(model_path)
    if not path.is_file():
        raise BundleError(f"`{path}` is missing", "give the `.onnx` file of a bundle; copy all files of the folder")
    if provider not in compiled_in():
        listed = ", ".join(compiled_in())
        raise EnvironmentMismatchError(
            f"this build of ONNX Runtime has no `{provider}`; it has {listed}", "install the build that has it"
        )
    options = recording(ort.SessionOptions())
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        wanted = [(name, provider_options(name, tf32=tf32)) for name in dict.fromkeys([provider, CPU])]
        session = ort.InferenceSession(str(path), options, providers=wanted)
    except Exception as error:  # its exceptions share no base class but Exception
        raise _refusal(path, error) from error
    if provider != CPU:
        _demand(session, provider, on_fallback)
    return session


def provider_options(provider: str, *, tf32: bool = False) -> dict[str, str]:
    """Options that a provider is opened with.

    Args:
        provider: Name of the provider, as ONNX Runtime spells it.
        tf32: Whether it may multiply float32 matrices in TF32.

    Example:
        >>> provider_options("CUDAExecutionProvider")
        {'use_tf32': '0'}
    """
    # On by default in ONNX Runtime, and it moves float32 results by 1e-3.
    return {"use_tf32": "1" if tf32 else "0"} if provider == _CUDA else {}


def _demand(session: Any, provider: str, on_fallback: str) -> None:
    placed = placement(session)
    if placed.get(provider):
        return
    total = sum(placed.values())
    if provider in session.get_providers():
        problem = f"`{provider}` loaded, and 0 of {total} nodes are placed on it; the session would run on the CPU"
    else:
        reason = Provider.read(provider).reason
        problem = f"`{provider}` is listed but did not load{f' ({reason})' if reason else ''}; 0 of {total} nodes on it"
    hint = "install the libraries it needs, use target 'cpu', or install the `onnxruntime` package without a GPU"
    if on_fallback == "error":
        raise EnvironmentMismatchError(problem, hint)
    warnings.warn(f"{problem}\n\nhint: {hint}", LightningMPWarning, stacklevel=4)


def _refusal(path: Path, error: Exception) -> BundleError:
    text = first_line(error)
    data = path.with_name(f"{path.name}.data")
    if "external data" in text.lower() or "External" in text:
        return BundleError(f"`{path}` keeps its weights in another file that cannot be read: {text}",
                           f"copy `{data.name}` beside it, or all files of the folder")  # fmt: skip
    return BundleError(f"`{path}` cannot be opened: {text}", "copy it again, or export the model again")
