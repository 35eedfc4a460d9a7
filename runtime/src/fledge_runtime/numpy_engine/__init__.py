"""The planner in NumPy: the same numbers as the C library in `native/`, for machines without a C compiler.

All arithmetic is in float32, in the order of the C code. A NumPy scalar must meet only NumPy scalars and arrays: before
NumPy 2, a Python float would turn it into float64.
"""
