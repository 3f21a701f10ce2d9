"""One forward pass on a LightningModule's example input, with no trace left."""

from __future__ import annotations

from collections.abc import Mapping

import lightning.pytorch as pl
import torch

from lightning_mp.precision.layer_reachability import LayerReachability


def example_forward(trainer: pl.Trainer, pl_module: pl.LightningModule) -> LayerReachability:
    """Call a LightningModule on its `example_input_array`, as Lightning does, in the Trainer's precision.

    No gradient is computed; random state and buffers are as before.

    Args:
        trainer: The Trainer that the module is attached to.
        pl_module: A module with an `example_input_array`.

    Returns:
        What was seen of the layers' order.
    """
    inputs = pl_module.transfer_batch_to_device(pl_module.example_input_array, pl_module.device, 0)
    buffers = {name: buffer.clone() for name, buffer in pl_module.named_buffers()}
    devices = [pl_module.device] if pl_module.device.type == "cuda" else []
    watch = LayerReachability()
    watch.attach(pl_module)
    try:
        with torch.random.fork_rng(devices), torch.enable_grad(), trainer.precision_plugin.forward_context():
            if isinstance(inputs, Mapping):
                pl_module(**inputs)
            elif isinstance(inputs, tuple | list):
                pl_module(*inputs)
            else:
                pl_module(inputs)
    finally:
        watch.detach()
        with torch.no_grad():
            for name, buffer in pl_module.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])
    return watch
