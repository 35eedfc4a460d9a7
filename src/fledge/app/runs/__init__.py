"""Runs for the browser: the index of files, metrics, settings, checkpoints."""
