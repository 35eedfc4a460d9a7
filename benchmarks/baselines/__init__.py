"""Plain implementations that benchmarks measure Fledge against: a package per task, a module per other subject."""
