"""The navigation step in plain NumPy and plain torch: baselines of `benchmarks.sim`, and a check of the simulator."""
