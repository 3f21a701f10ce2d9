"""The feature store: Arrow files that keep float16 and are mapped, not read."""
