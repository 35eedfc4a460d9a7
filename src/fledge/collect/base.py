"""Collector: what the training loop and the wrappers know of a collector.

The rollout, glossary of its keys ([T, N] time-major; off-policy collectors leave out what they do not need):

    obs/*             what was acted on
    input             what the network read: `policy.encode(obs)`, [T, N, F]
    raw               the sampled action in the learner's form, before scaling and clipping, [T, N, A]
    action            what the env got; a nested TensorDict where the action is a dict
    log_prob          log-probability of `raw` under the policy that sampled it
    value             predicted value of obs, reward units
    next_value        value of what followed: V(final_obs) where truncated, else V(next obs); ignored where terminated
    reward            paid for the action
    terminated        the task ended (success, crash): nothing follows        truncated   the clock ended the episode
    final_obs/*       last observation of the episode, where one ended (off-policy only)
    outcome           how the episode ended, 0 while it runs
    episode_return, episode_length                                            valid where an episode ended
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from tensordict import TensorDictBase

from fledge.core.errors import InputError
from fledge.envs.base import Log

RESULTS = ("reward", "terminated", "truncated", "outcome", "episode_return", "episode_length")
Prepare = Callable[[], None]


class Collector(ABC):
    """Base of everything that collects.

    Attributes:
        simulate_s: Seconds of the last rollout that were spent in the env.
        env_log: What the env logged in the last rollout (`TensorEnv.log_scalar`): sum and count by name.
        frames_per_batch: Decisions per rollout, 0 where nobody knows.
    """

    simulate_s: float
    env_log: Log = {}
    frames_per_batch: int
    _frames: int
    _fps: float

    @abstractmethod
    def rollout(self, prepare: Prepare | None = None) -> Any:
        """Collect and return one batch.

        Args:
            prepare: Called before flying, while the env rests: the place to change it (a curriculum).
        """

    def iterator(self) -> Iterator[Any]:
        """Another name of iterating."""
        return iter(self)

    def collect(self) -> Any:
        """The next batch as iteration hands it out: what `rollout` flew, finished (copied, split, post-processed)."""
        batch = next(iter(self), None)
        if batch is None:
            raise InputError("collect() came after the last batch: raise total_frames.")
        return batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.rollout()

    @property
    @abstractmethod
    def latest(self) -> TensorDictBase | Any:
        """The batch handed out last."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What the next batches depend on, besides the learner's policy and torch's random state."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from a `state_dict`."""

    def wait(self) -> None:
        """Wait until nothing is in the air."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release env and threads."""
