"""Rows: events, labels, splits, vocabularies, transforms. No torch."""
