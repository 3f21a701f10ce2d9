"""Facts about this machine. No torch."""
