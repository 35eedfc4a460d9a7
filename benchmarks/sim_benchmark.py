"""The interface of a task to `python -m benchmarks sim`: its simulator in mid-flight, and plain implementations of the same.

    SimBenchmark   what is timed, at which sizes, and the baselines
    Flight         a warmed-up env and its next actions; baselines continue from its snapshot

A baseline is made from a snapshot, returns to one with `load(snapshot)`, and makes one call with `step(*arguments)`, which
returns the results to compare. Arrays in its first argument (an array, or a tuple of them) have one row per env.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from fledge.core.errors import FledgeError
from fledge.envs.base import Action, TensorEnv

Native = Callable[[torch.Tensor], Any]
Baselines = Mapping[str, tuple[Callable[[Any], Any], Native]]
"""By name: how to make the baseline from a snapshot, and how to convert the env's tensors to its arrays."""


class Flight(ABC):
    """A warmed-up env and its next actions.

    Args:
        env: The env, warmed up.
        out: Its buffers.
        actions: Actions of the next calls, repeated in a cycle.
        calls: Number of calls after which the flight returns to its first state; None: never.
    """

    physics_steps: int = 1
    """Physics steps per call."""

    def __init__(self, env: TensorEnv, out: TensorDict, actions: Sequence[Action], calls: int | None = None) -> None:
        self.env, self.out, self.actions, self.calls = env, out, actions, calls

    def step(self, call: int) -> None:
        """Make the call of this number."""
        self.env.step(self.actions[call % len(self.actions)], out=self.out)

    def go_back(self) -> None:
        """Restore the first state, if the benchmark needs it."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the current state, for a baseline to continue from."""

    @abstractmethod
    def arguments(self, native: Native) -> Sequence[tuple[Any, ...]]:
        """Return the arguments of a baseline's `step` for each call, to be repeated in a cycle."""

    @abstractmethod
    def check(self, baselines: Baselines) -> dict[str, Any]:
        """Step the env and the baselines with the same actions, and return a `verdict` on their differences.

        Raises:
            FledgeError: if they differ by more than is allowed.
        """

    def memory(self) -> dict[str, int]:
        """Return bytes of tensors by kind."""
        return {"envs": tensor_bytes(vars(self.env)) + tensor_bytes(self.out)}

    def figures(self) -> dict[str, float]:
        """Return further figures of this flight, by name."""
        return {}

    def close(self) -> None:
        self.env.close()


class SimBenchmark(ABC):
    """A timed simulation: names for printing, sizes, and baselines."""

    one: str = "env"
    many: str = "envs"
    call: str = "step"
    """Name of what one call of `step` simulates."""
    count: int = 1024
    """Default number of envs in the comparison."""
    sizes: Sequence[int] = (64, 256, 1024, 4096, 16384)
    baselines: Baselines = {}

    @abstractmethod
    def begin(self, count: int, threads: int, seed: int) -> Flight:
        """Return a warmed-up flight of `count` envs."""

    @abstractmethod
    def settings(self, count: int) -> dict[str, Any]:
        """Return the settings of the simulation; JSON-able."""

    @abstractmethod
    def describe(self, settings: Mapping[str, Any]) -> str:
        """Return the settings as one line of text."""


def verdict(gaps: np.ndarray, tolerance: float, allowed: float) -> dict[str, Any]:
    """Judge whether at most the share `allowed` of differences exceeds `tolerance`."""
    outside = float((~(gaps <= tolerance)).mean())  # NaN is outside
    return {
        "max_difference": float(gaps.max()),
        "tolerance": tolerance,
        "share_outside": outside,
        "allowed_share": allowed,
        "ok": outside <= allowed,
    }


def require(name: str, verdicts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise FledgeError unless all verdicts on a baseline are good."""
    for key, found in verdicts.items():
        if not found["ok"]:
            raise FledgeError(
                f"The {name} baseline and the simulator disagree on {key}: {found['share_outside']:.3%} of the "
                f"values differ by more than {found['tolerance']} (allowed {found['allowed_share']:.3%}, "
                f"largest {found['max_difference']:.3g}). Nothing was timed."
            )


def tensor_bytes(holder: Any) -> int:
    """Return the bytes of all tensors in a tensor, TensorDict, or mapping of them."""
    if isinstance(holder, torch.Tensor):
        return holder.nbytes
    if isinstance(holder, (Mapping, TensorDict)):
        return sum(tensor_bytes(value) for value in holder.values())
    return 0
