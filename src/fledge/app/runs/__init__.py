"""Runs as the browser shows them: the list, curves, settings."""
