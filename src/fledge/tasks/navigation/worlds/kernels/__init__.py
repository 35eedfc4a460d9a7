"""Kernels that prepare a world; they run once for a world, on the CPU."""

from typing import Any

import numpy as np
import warp as wp

from fledge.core.warp_start import start_warp

start_warp()


def shared(values: np.ndarray, dtype: Any) -> Any:
    """Return an array for kernels that shares the memory of `values`, which must be contiguous."""
    return wp.array(values, dtype=dtype, device="cpu", copy=False)
