"""`python -m benchmarks NAME`: measure Fledge beside its baselines."""

from benchmarks.commands import main

main(prog_name="python -m benchmarks")
