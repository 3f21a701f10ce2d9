"""Learning-rate warm-up, schedules, clipping and parameter groups for any training loop; no Lightning."""
