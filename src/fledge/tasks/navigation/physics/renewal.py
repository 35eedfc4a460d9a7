"""Kernels that name the next maps: their keys, their moving obstacles, and the slots to build them in.

With `env.fresh_maps` each drone whose episode begins gets a new map. Kernels that build maps take a list of slots and skip
entries below 0, so a GPU builds the maps that a mask names without the host ever reading the mask.
"""

import warp as wp

from fledge.tasks.navigation.physics.crowd import Crowd


@wp.func
def name_map(
    slot: int,
    key: wp.vec2ui,
    placed: int,
    share: wp.float64,
    born: int,
    keys: wp.array(dtype=wp.vec2ui),
    crowd: Crowd,
):
    """Set a map's key, its number of moving obstacles, the number of these that are active, and the clock of its birth."""
    keys[slot] = key
    crowd.placed[slot] = placed
    crowd.count[slot] = int(wp.rint(wp.float64(placed) * share))
    crowd.born[slot] = born


@wp.kernel(enable_backward=False)
def name_next_map(
    slot: int,
    key: wp.vec2ui,
    placed: int,
    share: wp.float64,
    born: int,
    keys: wp.array(dtype=wp.vec2ui),
    crowd: Crowd,
    slots: wp.array(dtype=wp.int32),
):
    """Name one map of the bank; `slots` [1] becomes its slot."""
    name_map(slot, key, placed, share, born, keys, crowd)
    slots[0] = slot


@wp.kernel(enable_backward=False)
def name_fresh_maps(
    mask: wp.array(dtype=wp.bool),
    episodes: wp.array(dtype=wp.int32),
    env_offset: int,
    movers: wp.array(dtype=wp.int32),
    share: wp.float64,
    born: int,
    keys: wp.array(dtype=wp.vec2ui),
    crowd: Crowd,
    slots: wp.array(dtype=wp.int32),
):
    """Name the map of each drone's next episode where `mask` is true; `slots` becomes the drone's own slot there, else -1."""
    i = wp.tid()
    slots[i] = -1
    if mask[i]:
        episode = episodes[i] + 1
        key = wp.vec2ui(wp.uint32(i + env_offset), wp.uint32(episode))
        name_map(i, key, movers[episode % movers.shape[0]], share, born, keys, crowd)
        slots[i] = i
