"""Axes of rollouts: [T, N] (time, envs) in fledge; [N, T], with an axis named "time", in NavRL, TorchRL and `fledge.compat`.

Both are views of the same memory, so converting costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase

from fledge.collect.compressed import time_axis

TIME = "time"
OBSERVATIONS: tuple[tuple[str, ...], ...] = (("agents", "observation"), ("observation",), ("obs",))


def time_major(data: TensorDictBase) -> TensorDictBase:
    """Return a rollout as [T, N]; a rollout without axis names is assumed to be [T, N] already."""
    return data.transpose(0, 1) if time_axis(data) == 1 else data


def env_major(data: TensorDictBase) -> TensorDictBase:
    """Return a view of a rollout [T, N] as [N, T], with the second axis named "time"."""
    view = data.transpose(0, 1)
    view.names = [None, TIME]
    return view


def find_observations(data: Any) -> Any:
    """Return the observations in a dict or TensorDict: ("agents", "observation"), "observation", "obs", or `data` itself."""
    for path in OBSERVATIONS:
        found = data
        for name in path:
            found = found[name] if isinstance(found, Mapping | TensorDictBase) and name in found.keys() else None  # noqa: SIM118
        if found is not None:
            return found
    return data
