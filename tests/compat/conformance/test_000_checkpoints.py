"""Rows 1 to 73: asynchronous checkpoints, LZ4 files and the performance monitor, typed as document 000 has them."""
