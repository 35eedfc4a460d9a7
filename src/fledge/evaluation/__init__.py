"""Evaluate policies: held-out episodes, tables of results, curves, reports, and published benchmarks."""
