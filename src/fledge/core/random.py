"""Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A draw is a pure function of a 64-bit seed and a 128-bit counter, so results do not depend on the number or order of
threads, shards or devices. Fledge fills the counter as

    (who, when, purpose, draw)      who  = env, map or obstacle     when = episode or event number

This module is the NumPy version; `fledge.envs.kernel_random` is the same function for kernels.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

M0, M1 = 0xD2511F53, 0xCD9E8D57  # round multipliers
W0, W1 = 0x9E3779B9, 0xBB67AE85  # key schedule
ROUNDS = 10


class Purpose(enum.IntEnum):
    """Third word of the counter: the purpose of the draw. Never renumber: results of a seed depend on these values."""

    START = 1
    GOAL = 2
    MAP_CHOICE = 3
    DOMAIN = 4
    LIDAR_NOISE = 5
    STATE_NOISE = 6
    FAULT_LEVEL = 7
    TRACK = 8
    GHOST = 9
    MOVER_NOISE = 10
    MOVER_SIZE = 11
    DRIFT = 12
    WIND = 13
    LIDAR_RAY = 14
    BOX = 16
    CROWD_ORIGIN = 17
    CROWD_GOAL = 18
    CROWD_SPEED = 19
    POLICY = 32
    SHUFFLE = 33
    WEIGHTS = 34
    REPLAY = 35
    HELD_OUT = 36
    WAVE = 37
    OPPONENT = 38
    LEARN_ON = 39
    WORLD = 48
    GENERATED_WORLD = 49
    ACTOR = 64


def split_seed(seed: int) -> tuple[int, int]:
    """Return the low and high 32-bit words of a seed."""
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF


def philox(counter: npt.ArrayLike, seed: int) -> npt.NDArray[np.uint32]:
    """Return four random words, [..., 4] uint32, for each counter [..., 4] of 32-bit words and a 64-bit seed."""
    c = np.asarray(counter, dtype=np.uint64)
    c0, c1, c2, c3 = (c[..., k].copy() for k in range(4))
    k0, k1 = split_seed(seed)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(M0), c2 * np.uint64(M1)
        c0, c1, c2, c3 = ((p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low)
        k0, k1 = (k0 + W0) & 0xFFFFFFFF, (k1 + W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniform(counter: npt.ArrayLike, seed: int) -> npt.NDArray[np.float32]:
    """Return four floats in [0, 1), [..., 4], for each counter [..., 4], as `fledge.envs.kernel_random.uniform4` does."""
    return ((philox(counter, seed) >> np.uint32(8)).astype(np.float32)) * np.float32(2.0**-24)


def derive_seed(seed: int, *words: int) -> int:
    """Return a 63-bit seed that depends on `seed` and `words`, for libraries that take an integer (torch.Generator)."""
    counter = [*(w & 0xFFFFFFFF for w in words), 0, 0, 0, 0][:4]
    a, b, _, _ = (int(x) for x in philox(counter, seed))
    return (a << 31) ^ b
