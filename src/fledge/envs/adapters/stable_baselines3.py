"""A TensorEnv as a Stable-Baselines3 VecEnv, for PPO, SAC, DQN, callbacks and wrappers of Stable-Baselines3.

    from fledge.envs.adapters.stable_baselines3 import StableBaselinesVecEnv

    model = PPO("MultiInputPolicy", StableBaselinesVecEnv(env))

`infos[i]` is empty except where an episode ended. There it has what Stable-Baselines3 reads, and the outcome:

    terminal_observation     the last observation, from which a truncated episode is bootstrapped
    TimeLimit.truncated      whether the time limit ended the episode
    episode                  r, l, t: return, length, seconds since the start, as from the Monitor wrapper
    outcome                  how the episode ended, a value of `TensorEnv.outcomes`
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from fledge.core.errors import InputError
from fledge.core.extras import extra
from fledge.core.specs import TensorSpec
from fledge.envs.adapters.gymnasium import (
    EPISODE_FIGURES,
    Array,
    SeededAdapter,
    copies,
    copy_of,
    read_actions,
    space_of,
)
from fledge.envs.base import TensorEnv

with extra("stable-baselines3"):
    from stable_baselines3.common.vec_env import VecEnv


class StableBaselinesVecEnv(SeededAdapter, VecEnv):
    """Stable-Baselines3 VecEnv over a TensorEnv. Returned arrays are never changed later.

    Args:
        env: Closed by `close()`. Its action must be one tensor: Stable-Baselines3 supports no dicts of actions.
        make_env: Makes the same env for another seed, which `seed()` and a model's `seed=` need.
        scale_actions: Take bounded actions as numbers in [-1, 1], the range for which Stable-Baselines3 initialises policies.
        dict_obs: Give observations by name (a Dict space, for "MultiInputPolicy"), even a single one. False gives the
            env's only observation as an array (a Box, for "MlpPolicy" and "CnnPolicy").
    """

    def __init__(
        self,
        env: TensorEnv,
        make_env: Callable[[int], TensorEnv] | None = None,
        scale_actions: bool = True,
        dict_obs: bool = True,
    ) -> None:
        if not isinstance(env.action_spec, TensorSpec):
            names = ", ".join(env.action_spec)
            raise InputError(
                f"The env takes a dict of actions ({names}), but Stable-Baselines3 needs one tensor: use another env."
            )
        if not dict_obs and len(env.observation_spec) > 1:
            raise InputError(
                f"dict_obs=False needs an env with one observation, but this env has {', '.join(env.observation_spec)}: "
                'leave dict_obs=True and use "MultiInputPolicy".'
            )
        self._hold(env, make_env)
        self.render_mode = None
        self._action = np.zeros(0)
        self._begun = time.time()
        parts = {name: space_of(spec) for name, spec in env.observation_spec.items()}
        self._only = None if dict_obs else next(iter(parts))
        observed = parts[self._only] if self._only else spaces.Dict(parts)
        spec = env.action_spec
        self._scaled = scale_actions and spec.bounded and spec.num_values is None
        taken = dataclasses.replace(spec, low=-1.0, high=1.0) if self._scaled else spec
        super().__init__(env.num_envs, observed, space_of(taken))

    def reset(self) -> Any:
        """Begin new episodes in all envs, with the seed that `seed()` set, if any; return the observations."""
        if self._seeds[0] is not None:
            self._reseed(self._seeds[0])
            self._reset_seeds()
        self.env.reset(out=self._buffers)
        return self._named(copies(self._buffers["obs"]))

    def step_async(self, actions: Array) -> None:
        self._action = actions

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        action, spec = read_actions(self._action, self.env, self.action_space), self.env.action_spec
        if self._scaled:
            assert isinstance(spec, TensorSpec)
            assert isinstance(action, torch.Tensor)
            action = spec.low + (spec.high - spec.low) * (action + 1.0) / 2.0
        out = self.env.step(action, out=self._buffers)
        truncated = copy_of(out["truncated"])
        ended = copy_of(out["terminated"]) | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        index = np.flatnonzero(ended)
        if len(index):
            final = copies(out["final_obs"])
            outcomes, returns, lengths = (copy_of(out[name]) for name in EPISODE_FIGURES)
            seconds = round(time.time() - self._begun, 6)
        for i in index:
            infos[i] = {
                "terminal_observation": self._named({name: value[i] for name, value in final.items()}),
                "TimeLimit.truncated": bool(truncated[i]),
                "episode": {"r": float(returns[i]), "l": int(lengths[i]), "t": seconds},
                "outcome": self.env.outcomes.get(int(outcomes[i]), ""),
            }
        return self._named(copies(out["obs"])), copy_of(out["reward"]), ended, infos

    def _named(self, observed: dict[str, Array]) -> Any:
        return observed[self._only] if self._only else observed

    # ---- access to single envs, which here are one object --------------------------------------------------------------

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return the attribute of this object, or else of the env, repeated for each index."""
        found = getattr(self, attr_name) if hasattr(self, attr_name) else getattr(self.env, attr_name)
        return [found for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise InputError(f"{attr_name} cannot be set: all envs are one object. Make the env with other settings.")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise InputError(f"{method_name} cannot be called on single envs: all envs are one object. Call it on `.env`.")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return true only for the Monitor wrapper, whose statistics `infos` already has."""
        return [wrapper_class.__name__ == "Monitor" for _ in self._get_indices(indices)]
