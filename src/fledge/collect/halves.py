"""HalvesDataCollector: two envs take turns, so that one steps while the policy acts for the other. Rollouts are on-policy.

    caller's thread     act A0   act B0   act A1   act B1   ...
    stepping thread              step A0  step B0  step A1  ...

Contract
    Rollouts equal those of `SyncDataCollector((a, b), ...)` bit for bit: all inference and sampling happens on the caller's
    thread in the same order (A, B, next row), and a step of an env depends on its own state and actions only. The caller
    waits where it needs the result of a step. The first env fills the first columns of the rollout.

    It pays off where inference and stepping each leave cores idle: give each env (cores - 1) threads. To split one set of
    envs into halves, make two envs that differ in `env_offset` only: same seed, `total_envs` and maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from fledge.agents.actor_critic import ActorCritic
from fledge.collect.env_slice import EnvSlice, Slot
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError, InputError
from fledge.envs.base import TensorEnv


class HalvesDataCollector(SyncDataCollector):
    """A SyncDataCollector over two envs that overlaps simulation and inference.

    Simulation and inference run at the same time, so their times (`simulate_s` for simulation) add up to more than the
    time of a rollout.

    Args:
        envs: The two halves: two envs with the same specs, preferably of the same size.
        policy: Actor and critic.
        frames_per_batch: Decisions per rollout over both halves.
        args, options: Further arguments of `SyncDataCollector`.
    """

    def __init__(
        self, envs: Sequence[TensorEnv], policy: ActorCritic, frames_per_batch: int, *args: Any, **options: Any
    ) -> None:
        if isinstance(envs, TensorEnv) or len(envs) != 2:
            given = "one env" if isinstance(envs, TensorEnv) else f"{len(envs)} envs"
            raise ConfigError(f"envs is {given}, but must be two envs, each with half of the parallel envs.")
        super().__init__(envs, policy, frames_per_batch, *args, **options)
        self._closed = False
        self._stepping: dict[int, Future[None]] = {}  # by the first column of the env
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-halves")

    def _collect(self, slots: list[list[Slot]]) -> None:
        if self._closed:
            raise InputError("rollout() was called after shutdown(): make a new collector.")
        try:
            super()._collect(slots)
        finally:
            wait(self._stepping.values())  # after an error, no env may still be stepping
            self._stepping.clear()

    def _begin_step(self, env_slice: EnvSlice, slot: Slot) -> None:
        self._stepping[env_slice.columns.start] = self._pool.submit(env_slice.step, slot)

    def _wait_for(self, env_slice: EnvSlice) -> None:
        self._stepping.pop(env_slice.columns.start).result()

    def shutdown(self) -> None:
        """Stop the thread and close the envs."""
        self._closed = True
        self._pool.shutdown(wait=True)
        super().shutdown()
