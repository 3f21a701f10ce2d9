"""Networks: nn.Module only, a schema in, float32 logits out."""
