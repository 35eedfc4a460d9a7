"""The documents' name for one grid map out of its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fledge.replay.images import decompress_image


def decompress_single_gridmap(
    data: bytes | bytearray | memoryview, shape: Sequence[int] | None = None, dtype: Any = np.uint8
) -> np.ndarray:
    """One grid map: `compress_image`'s bytes, or a plain LZ4 frame, which needs `shape` and `dtype`."""
    return decompress_image(data, shape, dtype)
