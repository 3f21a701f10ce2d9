"""Scores that any model must beat, computed without torch."""
