"""NavRL's name for decompressing one grid map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fledge.replay.images import decompress_image


def decompress_single_gridmap(
    data: bytes | bytearray | memoryview, shape: Sequence[int] | None = None, dtype: Any = np.uint8
) -> np.ndarray:
    """Return the grid map in the bytes of `compress_image`, or in a plain LZ4 frame, which needs `shape` and `dtype`."""
    return decompress_image(data, shape, dtype)
