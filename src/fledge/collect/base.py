"""Collector: the interface of collectors, used by the training loop and by collectors that wrap others.

Keys of a rollout ([T, N] time-major; off-policy collectors omit what they do not need):

    obs/*             observations that the policy acted on
    input             input of the network: `policy.encode(obs)`, [T, N, F]
    raw_action        the sampled action in the learner's form, before scaling and clipping, [T, N, A]
    action            the action passed to the env; a nested TensorDict if the action is a dict
    hidden            state of a recurrent policy with which the decision began, [T, N, H] (`agents.recurrent`)
    log_prob          log-probability of `raw_action` under the policy that sampled it
    value             predicted value of obs, in reward units
    next_value        V(final_obs) where truncated, else V(next obs); ignored where terminated
    reward            reward of the action
    terminated        the episode ended in a terminal state (success, crash)   truncated   the time limit ended it
    final_obs/*       last observation of the episode, valid where one ended (off-policy only)
    outcome           how the episode ended, 0 while it runs
    episode_return, episode_length                                             valid where an episode ended
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from fledge.core.errors import InputError
from fledge.envs.base import Log

RESULTS = ("reward", "terminated", "truncated", "outcome", "episode_return", "episode_length")
Prepare = Callable[[], None]


class Collector(ABC):
    """Base class of collectors.

    Attributes:
        simulate_s: Seconds that the env took in the last rollout.
        env_log: Scalars that the env logged in the last rollout (`TensorEnv.log_scalar`): (sum, count) by name.
        metrics: Figures of the last rollout that training logs under their names.
        frames_per_batch: Decisions (actions of one env each) per rollout, summed over all envs; 0 if unknown.
    """

    simulate_s: float = 0.0
    env_log: Log = {}
    metrics: dict[str, float] = {}
    frames_per_batch: int
    _frames: int = 0
    _fps: float = 0.0
    _latest: Any = None

    @abstractmethod
    def rollout(self, prepare: Prepare | None = None) -> Any:
        """Collect and return one batch.

        Args:
            prepare: Function to call before collecting, while the env is idle; it may change the env (curriculum).
        """

    def iterator(self) -> Iterator[Any]:
        """Return `iter(self)`."""
        return iter(self)

    def collect(self) -> Any:
        """Return the next batch that a loop over the collector would get: copied, split and post-processed as configured."""
        batch = next(iter(self), None)
        if batch is None:
            raise InputError("collect() was called after the last batch: raise total_frames.")
        return batch

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.rollout()

    @property
    def latest(self) -> Any:
        """Batch that was returned last, not copied."""
        if self._latest is None:
            raise InputError("There is no batch yet: call rollout() first.")
        return self._latest

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next batches depend on, except the learner's policy and torch's random state."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from a `state_dict`."""

    def wait(self) -> None:
        """Wait until no batch is being collected."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release envs and threads."""
