"""LightningModules by task; each takes any network."""
