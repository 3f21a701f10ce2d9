"""Find the layers and tensors that hold an infinity or a NaN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor


def layer_of(parameter_name: str) -> str:
    """Name of the module that owns a parameter, without what `torch.compile` puts in front.

    Args:
        parameter_name: As `named_parameters` gives it.

    Returns:
        The module's name, or the parameter's own name if the outermost module owns it.

    Example:
        >>> layer_of("_orig_mod.top.2.weight"), layer_of("scale")
        ('top.2', 'scale')
    """
    name = parameter_name.replace("_orig_mod.", "")
    return name.rpartition(".")[0] or name


def finite_flags(tensors: Sequence[Tensor]) -> Tensor:
    """One flag a tensor: whether all its values are finite. Reads nothing back to the host.

    Args:
        tensors: At least one tensor, any shape and floating type, dense or sparse; all on one device.

    Returns:
        (number of tensors,) bool, on their device.

    Example:
        >>> finite_flags([torch.tensor([1.0, 2.0]), torch.tensor([float("inf")])])
        tensor([ True, False])
    """
    values = [tensor._values() if tensor.is_sparse else tensor for tensor in tensors]  # noqa: SLF001 - `values()` wants it coalesced
    # torch asks no format of 8 bits whether it is finite.
    wide = [value.float() if value.dtype.itemsize == 1 else value for value in values]
    return torch.stack([torch.isfinite(value.detach()).all() for value in wide])


def non_finite_names(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that hold an infinity or a NaN; one read from each device.

    Args:
        tensors: Tensors by name; those that are not floating are passed over.

    Returns:
        Names in the order given.

    Example:
        >>> non_finite_names({"x": torch.ones(2), "y": torch.tensor([float("nan")]), "ids": torch.arange(3)})
        ['y']
    """
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    devices = {tensor.device for tensor in floating.values()}
    bad: set[str] = set()
    for device in devices:
        names = [name for name, tensor in floating.items() if tensor.device == device]
        flags = finite_flags([floating[name] for name in names]).tolist()
        bad.update(name for name, finite in zip(names, flags, strict=True) if not finite)
    return [name for name in floating if name in bad]


def unique_layers(parameter_names: Iterable[str]) -> tuple[str, ...]:
    """Layers of parameters, each once, in the order of the first parameter.

    Args:
        parameter_names: As `named_parameters` gives them.

    Returns:
        Names of modules.

    Example:
        >>> unique_layers(["a.weight", "b.weight", "a.bias"])
        ('a', 'b')
    """
    return tuple(dict.fromkeys(layer_of(name) for name in parameter_names))
