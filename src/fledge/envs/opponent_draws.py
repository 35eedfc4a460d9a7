"""Kernel that counts the results of ended episodes and draws the opponents of the next ones, on the env's device."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4

P_OPPONENT = wp.constant(wp.uint32(int(Purpose.OPPONENT)))


@wp.func
def index_of(edges: wp.array(dtype=wp.float64), u: wp.float64) -> int:
    """Return the first index whose edge is above u; the edges ascend, and the last is infinite."""
    k = int(0)
    while edges[k] <= u:
        k = k + 1
    return k


@wp.kernel(enable_backward=False)
def begin_episodes(
    first: int,
    counts: int,
    mask: wp.array(dtype=wp.bool),
    outcome: wp.array(dtype=wp.uint8),
    env_offset: int,
    seed: wp.vec2ui,
    edges: wp.array(dtype=wp.float64),
    episode: wp.array(dtype=wp.int64),
    opponent: wp.array(dtype=wp.int64),
    results: wp.array2d(dtype=wp.int64),
):
    """Where `mask` is true, begin row i's next episode: draw its opponent by weight.

    Args:
        counts: 1: episodes ended, so count their outcomes in `results` [opponents, outcomes] first.
        outcome: [2 * N] outcomes of both sides' rows.
        edges: [opponents] cumulative weights, the last infinite.
    """
    i = first + wp.tid()
    if not mask[i]:
        return
    if counts == 1:
        mine = 2 * i + (i + env_offset) % 2
        how = int(outcome[mine])
        if how < results.shape[1]:  # training refuses an outcome that the env does not name
            wp.atomic_add(results, int(opponent[i]), how, wp.int64(1))
    episode[i] = episode[i] + wp.int64(1)
    if edges.shape[0] > 1:
        u = uniform4(wp.uint32(i + env_offset), wp.uint32(episode[i]), P_OPPONENT, wp.uint32(0), seed)[0]
        opponent[i] = wp.int64(index_of(edges, wp.float64(u)))
