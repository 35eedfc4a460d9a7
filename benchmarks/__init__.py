"""Benchmarks: each checks the result first, then times it beside its baseline. One module per subject."""
