"""HalvesDataCollector: one half of the drones decides while the other half flies. Exact: no lag, on-policy.

    caller's thread     act A0   act B0   act A1   act B1   ...
    flying thread                step A0  step B0  step A1  ...

Contract
    Over the same two envs, rollouts are those of `SyncDataCollector((a, b), ...)`, bit for bit: all deciding and drawing
    happens on the caller's thread in that collector's order (A, B, next row), an env's step depends on nothing but its
    own state and actions, and each env steps on one thread only. The caller waits where it needs a step's result.
    Drones of the first env are the first columns of the rollout.

    It pays where deciding and stepping each leave cores idle: give each env (cores - 1) threads. The two envs of a
    population differ in `env_offset` only: same seed, same `total_envs`, same bank of maps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from tensordict import TensorDict

from fledge.agents.actor_critic import ActorCritic
from fledge.collect.env_slice import EnvSlice, Slot
from fledge.collect.exploration import ExplorationType
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, InputError
from fledge.envs.base import TensorEnv


class HalvesDataCollector(SyncDataCollector):
    """A SyncDataCollector over two envs whose simulation and inference overlap.

    `simulate_s` runs beside deciding: the two add up to more than the time of a rollout.

    Args:
        envs: The two halves, of one kind; best of one size.
        policy: Acts and values.
        frames_per_batch: Decisions per rollout over both halves.
        total_frames: Stop iterating after this many decisions; -1 never stops.
        device: Where rollouts live; the envs' device.
        return_same_td: Yield one object, updated in place; otherwise every rollout stays valid.
        exploration_type: "random" samples actions, "deterministic" takes the mean; or an `ExplorationType`.
        split_trajs: Yield [num_trajectories, max_length] with a "mask" instead of [T, N].
        postproc: Applied to every rollout before it is handed out.
        keys: "navrl" gives rollouts the names of NavRL and TorchRL beside ours (see `collect.key_names`).
    """

    def __init__(
        self,
        envs: Sequence[TensorEnv],
        policy: ActorCritic,
        frames_per_batch: int,
        total_frames: int = -1,
        device: str | torch.device | None = None,
        return_same_td: bool = True,
        exploration_type: ExplorationType | str = "random",
        split_trajs: bool = False,
        postproc: Callable[[TensorDict], TensorDict] | None = None,
        keys: str = "fledge",
    ) -> None:
        if isinstance(envs, TensorEnv) or len(envs) != 2:
            given = "one env" if isinstance(envs, TensorEnv) else f"{len(envs)} envs"
            raise ConfigError(f"envs is {given}, but must be two of half the size: they take turns.")
        super().__init__(
            envs,
            policy,
            frames_per_batch,
            total_frames,
            device,
            return_same_td,
            exploration_type,
            split_trajs,
            postproc,
            keys,
        )
        self._ended = False
        self._flying: dict[int, Future[None]] = {}  # by the lane's first column
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-halves")

    def _fly(self, slots: list[list[Slot]]) -> None:
        if self._ended:
            raise InputError("A batch was asked for after shutdown(): make a new collector.")
        try:
            super()._fly(slots)
        finally:
            wait(self._flying.values())  # after an error: no env flies on behind the caller's back
            self._flying.clear()

    def _begin_step(self, lane: EnvSlice, slot: Slot) -> None:
        self._flying[lane.columns.start] = self._pool.submit(lane.step, slot)

    def _finish_step(self, lane: EnvSlice, slot: Slot) -> None:
        self._flying.pop(lane.columns.start).result()
        super()._finish_step(lane, slot)

    def shutdown(self) -> None:
        """Stop the thread and release the envs."""
        self._ended = True
        self._pool.shutdown(wait=True)
        super().shutdown()
