"""ExperienceCollector: collect transitions for an off-policy learner and its replay buffer.

A rollout is one TensorDict [T, N], updated in place: it is valid until the next call. `collect.base` lists its keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.agents.base import Action
from fledge.collect.base import RESULTS, Collector, Prepare
from fledge.collect.env_slice import EnvSlice
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv, make_action_buffer, write_action


class ExperienceCollector(Collector):
    """Collect transitions of an exploring policy.

    Args:
        env: A batched env.
        explore: Function that returns actions for observations.
        steps: Decisions per env and rollout.
    """

    def __init__(self, env: TensorEnv, explore: Callable[[Mapping[str, Tensor]], Action], steps: int) -> None:
        if steps < 1:
            raise ConfigError(f"steps is {steps}, but must be at least 1.")
        self.env, self.explore, self.steps = env, explore, steps
        self.frames_per_batch = steps * env.num_envs
        self._env_slice = EnvSlice(env, 0)
        one, batch = env.make_buffers(), [steps, env.num_envs]
        one = one.select(*RESULTS, "obs", "final_obs")
        rollout = one.apply(lambda x: torch.zeros((steps, *x.shape), dtype=x.dtype, device=x.device), batch_size=batch)
        assert isinstance(rollout, TensorDict)
        self._latest = rollout.set("action", make_action_buffer(env.action_spec, (steps, env.num_envs), env.device))
        self._slots = self._env_slice.slots(self._latest)

    @property
    def simulate_s(self) -> float:  # type: ignore[override]
        return self._env_slice.simulate_s

    @torch.no_grad()
    def rollout(self, prepare: Prepare | None = None) -> TensorDict:
        """Collect `steps` decisions in every env and return them, [T, N]."""
        begun = time.perf_counter()
        if prepare is not None:
            prepare()
        self._env_slice.simulate_s = 0.0
        self._env_slice.begin(self._slots[0])
        for slot in self._slots:
            write_action(slot.row["action"], self.explore(slot.obs))
            self._env_slice.step(slot)
        self.env_log = self.env.take_log()
        self._frames += self.frames_per_batch
        self._fps = self.frames_per_batch / (time.perf_counter() - begun)
        return self._latest

    def state_dict(self) -> dict[str, Any]:
        """Return the env's state; the policy and torch's global random state are not included."""
        return {**self._env_slice.state_dict(), "frames": self._frames, "begun": self._env_slice.begun}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._env_slice.load_state_dict(state)
        self._frames, self._env_slice.begun = int(state["frames"]), bool(state["begun"])

    def shutdown(self) -> None:
        """Close the env."""
        self.env.close()
