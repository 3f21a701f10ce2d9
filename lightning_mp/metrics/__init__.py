"""Metrics in float32 that say undefined rather than lie."""
