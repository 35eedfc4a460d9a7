"""ExperienceCollector: flies for an off-policy learner and hands out what its replay buffer takes.

One TensorDict [T, N], time-major, allocated once and written in place; `collect.base` says what its keys mean.

Row t of `obs` is written by the env's step t - 1; the step after the last row writes into a spare slot, which becomes
row 0 of the next rollout. The rollout is the collector's: it is valid until the next call.
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
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv, make_action_buffer, write_action


class ExperienceCollector(Collector):
    """Collects transitions of an exploring policy.

    Args:
        env: Many envs, stepped together.
        explore: Actions for the env from its observations.
        steps: Decisions per env and rollout.
    """

    def __init__(self, env: TensorEnv, explore: Callable[[Mapping[str, Tensor]], Action], steps: int) -> None:
        if steps < 1:
            raise ConfigError(f"steps is {steps}, but a rollout needs at least 1.")
        self.env, self.explore, self.steps = env, explore, steps
        self.frames_per_batch = steps * env.num_envs
        self._frames = 0
        self._fps = 0.0
        self.simulate_s = 0.0  # of the last rollout, spent in the env
        self._begun = False
        one = env.make_buffers()
        self._spare = one["obs"]
        n = env.num_envs

        def repeat(value: Tensor) -> Tensor:
            return torch.zeros((steps, *value.shape), dtype=value.dtype, device=value.device)

        rows = {k: repeat(one[k]) for k in RESULTS}
        rows["action"] = make_action_buffer(env.action_spec, (steps, n), env.device)
        nested = {k: TensorDict({n: repeat(v) for n, v in one[k].items()}, [steps, n]) for k in ("obs", "final_obs")}
        self._rollout = TensorDict({**rows, **nested}, [steps, n])
        self._slots = [self._slot(t) for t in range(steps)]

    def _slot(self, t: int) -> tuple[dict[str, Tensor], Tensor, TensorDict]:
        """Views of row t: observations to act on, the action's place, and the buffers that the env fills."""
        rows, n = self._rollout, self.env.num_envs
        into = {k: v[t + 1] for k, v in rows["obs"].items()} if t + 1 < self.steps else dict(self._spare.items())
        final = {k: v[t] for k, v in rows["final_obs"].items()}
        out = TensorDict({"obs": into, "final_obs": final, **{k: rows[k][t] for k in RESULTS}}, [n])
        return {k: v[t] for k, v in rows["obs"].items()}, rows["action"][t], out

    @torch.no_grad()
    def rollout(self, prepare: Prepare | None = None) -> TensorDict:
        """Fly `steps` decisions in every env and return them, [T, N]."""
        begun = time.perf_counter()
        if prepare is not None:
            prepare()
        self.simulate_s = 0.0
        if not self._begun:
            self.env.reset(out=TensorDict({"obs": self._spare}, [self.env.num_envs]))
            self._begun = True
        for name, value in self._spare.items():
            self._slots[0][0][name].copy_(value)
        for obs, action, out in self._slots:
            write_action(action, self.explore(obs))
            stepping = time.perf_counter()
            self.env.step(action, out=out)
            self.simulate_s += time.perf_counter() - stepping
        self.env_log = self.env.take_log()
        self._frames += self.frames_per_batch
        self._fps = self.frames_per_batch / (time.perf_counter() - begun)
        return self._rollout

    @property
    def latest(self) -> TensorDict:
        """The rollout, in place."""
        return self._rollout

    def state_dict(self) -> dict[str, Any]:
        """What the next rollout depends on, besides the policy and torch's random state."""
        return {
            "env": self.env.state_dict(),
            "obs": {k: v.clone() for k, v in self._spare.items()},
            "frames": self._frames,
            "begun": self._begun,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["env"])
        for name, value in self._spare.items():
            value.copy_(state["obs"][name])
        self._frames, self._begun = int(state["frames"]), bool(state["begun"])

    def shutdown(self) -> None:
        """Release the env."""
        self.env.close()
