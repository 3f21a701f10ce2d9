"""Functions on tensors and modules; no Lightning."""
