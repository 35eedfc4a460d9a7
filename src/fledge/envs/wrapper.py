"""EnvWrapper: base class of wrappers around a TensorEnv. It forwards everything; a subclass overrides what it changes.

class Noisy(EnvWrapper):
    def step(self, action, dt=None, out=None):
        return self.env.step(action + 0.1 * torch.randn_like(action), dt, out)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict
from torch import Tensor

from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.base import Action, Log, TensorEnv, add_logs


class EnvWrapper(TensorEnv):
    """TensorEnv that forwards every call to another TensorEnv.

    Args:
        env: The env to wrap; closed by `close()`.
        num_envs: Number of rows of the wrapper, if the env has a different number.
    """

    def __init__(self, env: TensorEnv, num_envs: int | None = None) -> None:
        super().__init__(env.num_envs if num_envs is None else num_envs, str(env.device), env.seed)
        self.env = env
        self.outcomes, self.decision_s, self.group = env.outcomes, env.decision_s, env.group
        self.one_clock, self.resumes_exactly = env.one_clock, env.resumes_exactly
        self.least_timeout = env.least_timeout

    @property
    def unwrapped(self) -> TensorEnv:
        return self.env.unwrapped

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return self.env.observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self.env.action_spec

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        return self.env.reset(env_mask, out=out)

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        return self.env.step(action, dt, out=out)

    def take_log(self) -> Log:
        return add_logs([self.env.take_log(), super().take_log()])

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.env.load_state_dict(state)

    def close(self) -> None:
        self.env.close()
