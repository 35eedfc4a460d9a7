"""Plain implementations of the duel: a second opinion on the simulator, and baselines of the benchmarks."""
