"""LightningCLI with readable errors, recipe look-up, and the run of a recipe from log to bundle."""
