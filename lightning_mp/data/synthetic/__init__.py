"""A seeded event log whose best possible AUC is known."""
