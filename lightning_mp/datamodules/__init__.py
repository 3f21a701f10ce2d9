"""Store to batches."""
