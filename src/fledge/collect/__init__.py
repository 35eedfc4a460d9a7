"""Collectors of rollouts of a policy in an env: synchronous, in the background, over two alternating envs, or compressed.

Names resolve on first use: importing this package loads neither torch nor Warp nor TorchRL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.core.lazy import lazy_names

if TYPE_CHECKING:
    from fledge.collect.compress_transform import CompressTransform
    from fledge.collect.compressed import CompressedBatch, CompressedDataCollector
    from fledge.collect.exploration import ExplorationType, set_exploration_type
    from fledge.collect.halves import HalvesDataCollector
    from fledge.collect.pipelined import PipelinedDataCollector
    from fledge.collect.sync import SyncDataCollector, split_trajectories

__all__ = ["CompressTransform", "CompressedBatch", "ExplorationType", "set_exploration_type", "split_trajectories"]
__all__ += ["CompressedDataCollector", "HalvesDataCollector", "PipelinedDataCollector", "SyncDataCollector"]

_NAMES = {
    "compress_transform": ("CompressTransform",),
    "compressed": ("CompressedBatch", "CompressedDataCollector"),
    "exploration": ("ExplorationType", "set_exploration_type"),
    "halves": ("HalvesDataCollector",),
    "pipelined": ("PipelinedDataCollector",),
    "sync": ("SyncDataCollector", "split_trajectories"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _NAMES.items() for name in names})
