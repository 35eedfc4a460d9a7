"""Differences between two versions of an array, which compress better than either.

`difference(new, old)` and `apply(delta, old)` are exact inverses for any bits, NaN payloads included: words are subtracted as
integers modulo 2^n and zig-zag coded, so that small changes of either sign are small numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fledge.storage.format.leaves import WORDS

_SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def difference(new: np.ndarray, old: np.ndarray, word: int) -> np.ndarray:
    """Return the zig-zag difference of two byte arrays of the same length, as bytes."""
    unsigned, signed = WORDS[word], _SIGNED[word]
    gap = np.subtract(new.view(unsigned), old.view(unsigned)).view(signed)
    folded = np.left_shift(gap, 1)
    np.right_shift(gap, 8 * word - 1, out=gap)  # all ones where the difference is negative
    return np.bitwise_xor(folded, gap, out=folded).view(np.uint8)


def apply(delta: np.ndarray, old: np.ndarray, word: int) -> np.ndarray:
    """Return the bytes of the new version, from its difference (overwritten) and the old version."""
    unsigned = WORDS[word]
    folded = delta.view(unsigned)
    sign = np.negative(np.bitwise_and(folded, unsigned(1)))  # modulo 2^n: 0 or all ones
    np.right_shift(folded, unsigned(1), out=folded)
    np.bitwise_xor(folded, sign, out=folded)
    return np.add(folded, old.view(unsigned), out=folded).view(np.uint8)
