"""Evaluation: episodes, tables, curves, reports, benchmarks of the field."""
