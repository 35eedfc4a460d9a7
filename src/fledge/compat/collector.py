"""The collector of NavRL and OmniDrones: `from fledge.compat.collector import SyncDataCollector`.

Rollouts are [N, T] with an axis named "time". Their entries have NavRL's names (see `fledge.collect.key_names`), and
observations also the names data["observation"]["lidar"] and so on. All are views of fledge's rollout; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from fledge.agents.actor_critic import ActorCritic
from fledge.collect import sync
from fledge.collect.base import Prepare
from fledge.collect.env_slice import Slot
from fledge.collect.exploration import ExplorationType, set_exploration_type
from fledge.compat.devices import usable_device
from fledge.compat.layout import env_major, time_major
from fledge.envs.base import TensorEnv

__all__ = ["ExplorationType", "SyncDataCollector", "set_exploration_type"]


class SyncDataCollector(sync.SyncDataCollector):
    """Collect rollouts [N, T] of a policy in an env, one after the other.

    Args:
        env: A batched env, or a sequence of batched envs with the same specs.
        policy: Actor and critic, such as `fledge.compat.ppo.PPO`.
        frames_per_batch: Decisions per rollout over all envs; a multiple of `env.num_envs`.
        total_frames: Stop iterating after this many decisions; -1 never stops.
        device: Device of the env; if a CUDA device does not exist, the CPU is used and a warning printed.
        return_same_td: Yield one object, updated in place; otherwise yield a copy each time.
        exploration_type: `ExplorationType.RANDOM` samples actions, `MEAN` takes the mean.
        split_trajs: Yield [num_trajectories, max_length] with a "mask" instead of [N, T].
        postproc: Function applied to every rollout before it is yielded.
        pin_memory: Ignored: rollouts are made on the device that learns from them, so there is no copy to speed up.
    """

    _iter: int = -1
    """Number of the batch yielded last, from 0."""

    def __init__(
        self,
        env: TensorEnv | Sequence[TensorEnv],
        policy: ActorCritic,
        frames_per_batch: int,
        total_frames: int = -1,
        device: str | torch.device | None = None,
        return_same_td: bool = False,
        exploration_type: ExplorationType | str = ExplorationType.RANDOM,
        split_trajs: bool = False,
        postproc: Callable[[TensorDict], TensorDict] | None = None,
        pin_memory: bool = False,
    ) -> None:
        self._views: dict[int, Any] = {}  # [N, T] by the rollout's identity
        device = usable_device(device)
        options = (return_same_td, exploration_type, split_trajs, postproc)
        super().__init__(env, policy, frames_per_batch, total_frames, device, *options, keys="navrl")

    def _allocate(self) -> tuple[TensorDict, list[list[Slot]]]:
        data, slots = super()._allocate()
        data["observation"] = data["agents", "observation"]
        self._views[id(data)] = env_major(data)
        return data, slots

    def rollout(self, prepare: Prepare | None = None) -> Any:
        """Call `prepare` if given, then collect `frames_per_batch` decisions and return them, [N, T]."""
        self._latest = self._views[id(super().rollout(prepare))]
        return self._latest

    def __iter__(self) -> Iterator[TensorDict]:
        for number, data in enumerate(super().__iter__()):
            self._iter = number
            yield data

    def finish(self, data: Any) -> Any:
        """Apply `return_same_td`, `split_trajs` and `postproc` to a rollout."""
        if not self.return_same_td:
            data = data.clone()
        if self.split_trajs:
            whole = time_major(data)
            whole.names = [None, None]
            data = sync.split_trajectories(whole)
        return self.postproc(data) if self.postproc else data
