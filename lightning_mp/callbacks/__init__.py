"""Callbacks for any Lightning Trainer: thin shells over precision, hardware and export."""
