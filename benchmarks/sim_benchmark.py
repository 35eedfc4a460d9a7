"""A world's part in `fledge bench sim`: its simulator in mid-flight, and the same flight in plain implementations.

    SimBenchmark   what is timed, how many of it, and the baselines: `Task.references.CONTEST`
    Flight    an env warmed up, with the actions it is to fly; baselines fly on from its snapshot

A baseline is made from a snapshot, goes back to one with `load(snapshot)`, and flies one call with `step(*arguments)`, which
returns what it can be judged by. Arrays of its first argument, or of the tuple that it is, have one row an env.
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
"""By name: how to make one from a snapshot, and how its arrays are made from the env's tensors."""


class Flight(ABC):
    """An env in mid-flight, and what it does next.

    Args:
        env: Warmed up.
        out: Its buffers.
        actions: Of the next calls, over and over.
        calls: After so many the flight goes back to where it was; None: never.
    """

    physics_steps: int = 1
    """Of a call."""

    def __init__(self, env: TensorEnv, out: TensorDict, actions: Sequence[Action], calls: int | None = None) -> None:
        self.env, self.out, self.actions, self.calls = env, out, actions, calls

    def step(self, call: int) -> None:
        """Fly a call."""
        self.env.step(self.actions[call % len(self.actions)], out=self.out)

    def go_back(self) -> None:
        """Return to where the flight began, where that matters."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Where all are, for a baseline to fly on from."""

    @abstractmethod
    def arguments(self, native: Native) -> Sequence[tuple[Any, ...]]:
        """What a baseline's `step` takes in each call, over and over."""

    @abstractmethod
    def check(self, baselines: Baselines) -> dict[str, Any]:
        """Fly all from here with the same actions, and return how far they differ: see `verdict`.

        Raises:
            FledgeError: if that is too far.
        """

    def memory(self) -> dict[str, int]:
        """Bytes of tensors by what they are of."""
        return {"envs": tensor_bytes(vars(self.env)) + tensor_bytes(self.out)}

    def figures(self) -> dict[str, float]:
        """What else is to be known about this flight."""
        return {}

    def close(self) -> None:
        self.env.close()


class SimBenchmark(ABC):
    """What is timed. Subclasses fill in words, numbers and baselines."""

    one: str = "env"
    many: str = "envs"
    call: str = "step"
    """What one call of `step` flies."""
    count: int = 1024
    """In the comparison, unless the user says otherwise."""
    sizes: Sequence[int] = (64, 256, 1024, 4096, 16384)
    baselines: Baselines = {}

    @abstractmethod
    def begin(self, count: int, threads: int, seed: int) -> Flight:
        """An env with so many, warmed up."""

    @abstractmethod
    def settings(self, count: int) -> dict[str, Any]:
        """What was flown, JSON-able."""

    @abstractmethod
    def describe(self, settings: Mapping[str, Any]) -> str:
        """The same in a line."""


def verdict(gaps: np.ndarray, tolerance: float, allowed: float) -> dict[str, Any]:
    """Whether at most the allowed share of differences exceeds a tolerance."""
    outside = float((~(gaps <= tolerance)).mean())  # NaN is outside
    return {
        "max_difference": float(gaps.max()),
        "tolerance": tolerance,
        "share_outside": outside,
        "allowed_share": allowed,
        "ok": outside <= allowed,
    }


def require(name: str, verdicts: Mapping[str, Mapping[str, Any]]) -> None:
    """FledgeError unless a baseline's verdicts are good."""
    for key, found in verdicts.items():
        if not found["ok"]:
            raise FledgeError(
                f"The {name} reference and the simulator disagree on {key}: {found['share_outside']:.3%} of the "
                f"values differ by more than {found['tolerance']} (allowed {found['allowed_share']:.3%}, "
                f"largest {found['max_difference']:.3g}). Nothing was timed: one of the two is wrong."
            )


def tensor_bytes(holder: Any) -> int:
    """Bytes of all tensors in a tensor, TensorDict, or mapping of them."""
    if isinstance(holder, torch.Tensor):
        return holder.nbytes
    if isinstance(holder, (Mapping, TensorDict)):
        return sum(tensor_bytes(value) for value in holder.values())
    return 0
