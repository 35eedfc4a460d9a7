"""`python -m benchmarks NAME`: measure Fledge beside its baselines."""

from benchmarks.commands import bench

bench(prog_name="python -m benchmarks")
