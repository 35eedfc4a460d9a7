"""Collectors: rollouts of a policy in an env; synchronous, pipelined, in halves, or compressed.

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

__all__ = [
    "CompressTransform",
    "CompressedBatch",
    "CompressedDataCollector",
    "ExplorationType",
    "HalvesDataCollector",
    "PipelinedDataCollector",
    "SyncDataCollector",
    "set_exploration_type",
    "split_trajectories",
]

_HOME = {
    "CompressTransform": "compress_transform",
    "CompressedBatch": "compressed",
    "CompressedDataCollector": "compressed",
    "ExplorationType": "exploration",
    "HalvesDataCollector": "halves",
    "PipelinedDataCollector": "pipelined",
    "SyncDataCollector": "sync",
    "set_exploration_type": "exploration",
    "split_trajectories": "sync",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
