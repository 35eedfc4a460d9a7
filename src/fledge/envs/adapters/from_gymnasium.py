"""Any Gymnasium env as a TensorEnv: N copies, stepped one after the other in this process.

    Box, Discrete, MultiDiscrete, MultiBinary     one tensor
    MultiDiscrete actions of unequal sizes        a dict with one integer per choice: choice_0, choice_1, ...
    Dict of these                                 observations and actions by name
    Box actions with different bounds             actions in [-1, 1], scaled to the bounds

Gymnasium has no way to save an env. This adapter saves the usual parts of envs and wrappers: plain numbers and arrays, random
generators, MuJoCo's integration state. Once per ID it tests whether a restored env continues bit for bit. If not,
`resumes_exactly` is false, and a resumed run begins new episodes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict

from fledge.core.errors import ConfigError, InputError
from fledge.core.random import derive_seed
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.adapters.gymnasium_state import can_be_put_back, make_one, put_back, take_out
from fledge.envs.base import Action, TensorEnv, check_begun, check_duration, clear_results, fill

Array = np.ndarray[Any, Any]
OBS = "obs"  # name of the observation of an env without a Dict space


class FromGymnasium(TensorEnv):
    """N copies of a Gymnasium env. Copy i is seeded once, at its first reset, with (seed, env_offset + i)."""

    outcomes: Mapping[int, str] = {0: "running", 1: "terminated", 2: "truncated"}

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        device: str = "cpu",
        seed: int = 0,
        env_offset: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(num_envs, device, seed)
        self.env_id, self.options, self.env_offset = env_id, dict(options or {}), env_offset
        self.envs = [make_one(env_id, self.options) for _ in range(num_envs)]
        first = self.envs[0]
        self._observed = observation_specs(first.observation_space, env_id)
        self._action, self._to_env = action_spec_of(first.action_space, env_id)
        self.decision_s = seconds_per_step(first)
        n = num_envs
        self._obs = {k: np.zeros((n, *s.shape), _numpy(s.dtype)) for k, s in self._observed.items()}
        self._return, self._length = np.zeros(n), np.zeros(n, np.int32)
        self._begun = False

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return self._observed

    @property
    def action_spec(self) -> ActionSpec:
        return self._action

    @property
    def resumes_exactly(self) -> bool:  # type: ignore[override]
        return can_be_put_back(self.env_id, tuple(sorted((k, repr(v)) for k, v in self.options.items())))

    def reset(self, env_mask: torch.Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        mask = self.check_mask(env_mask, self._begun).cpu().numpy()
        into = self.check_buffers(out)
        for i in np.flatnonzero(mask):
            seed = None if self._begun else derive_seed(self.seed, self.env_offset + int(i)) % 2**31
            self._restart(int(i), seed)
        self._begun = True
        fill(into["obs"], tensors(self._obs))
        clear_results(into)
        return into

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        check_duration(dt, self.decision_s)
        check_begun(self._begun)
        self.check_action(action)
        into = self.check_buffers(out)
        given = self._to_env(action)
        n = self.num_envs
        reward, outcome = np.zeros(n, np.float32), np.zeros(n, np.uint8)
        final = {k: v.copy() for k, v in self._obs.items()}
        for i, env in enumerate(self.envs):
            obs, paid, terminated, truncated, _ = env.step(given[i])
            self._note(i, obs)
            reward[i] = paid
            outcome[i] = 1 if terminated else 2 if truncated else 0
        self._return += reward
        self._length += 1
        returns, lengths = self._return.copy(), self._length.copy()
        for done in np.flatnonzero(outcome):
            for name, value in self._obs.items():
                final[name][done] = value[done]
            self._restart(int(done), None)
        results: dict[str, Array] = {"reward": reward, "outcome": outcome, "episode_return": returns}
        results |= {"terminated": outcome == 1, "truncated": outcome == 2, "episode_length": lengths}
        fill(into, tensors(results))
        if "final_obs" in into.keys():  # noqa: SIM118 - a TensorDict is no dict
            fill(into["final_obs"], tensors(final))
        fill(into["obs"], tensors(self._obs))
        return into

    def _restart(self, i: int, seed: int | None) -> None:
        obs, _ = self.envs[i].reset(seed=seed)
        self._note(i, obs)
        self._return[i], self._length[i] = 0.0, 0

    def _note(self, i: int, obs: Any) -> None:
        if isinstance(obs, Mapping):
            for name in self._obs:
                self._obs[name][i] = obs[name]
        else:
            self._obs[OBS][i] = obs

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"seed": self.seed, "env_offset": self.env_offset, "begun": self._begun}
        if self.resumes_exactly and self._begun:
            state["envs"] = [take_out(env) for env in self.envs]
            counters = tensors({"return": self._return, "length": self._length})
            state |= copy.deepcopy({"obs": tensors(self._obs), **counters})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state, ("begun",), seed=self.seed, env_offset=self.env_offset)
        if "envs" not in state:
            if state["begun"]:
                raise InputError(f"gym:{self.env_id} cannot restore a state (resumes_exactly is false): call reset().")
            self._begun = False
            return
        if len(state["envs"]) != self.num_envs:
            raise InputError(
                f"The state was saved with num_envs={len(state['envs'])}, but this env has num_envs={self.num_envs}. "
                "Make the env with the saved num_envs."
            )
        for env, saved in zip(self.envs, state["envs"], strict=True):
            if not self._begun:
                env.reset(seed=0)  # creates attributes that exist only after a reset
            put_back(env, saved)
        self._obs = {k: v.numpy().copy() for k, v in state["obs"].items()}
        self._return, self._length = state["return"].numpy().copy(), state["length"].numpy().copy()
        self._begun = True

    def close(self) -> None:
        for env in self.envs:
            env.close()


def tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def seconds_per_step(env: gymnasium.Env[Any, Any]) -> float:
    """Return the simulated time of a step, s: the env's dt, or else 1 / its frame rate, or else 1."""
    dt, rate = getattr(env.unwrapped, "dt", None), (env.metadata or {}).get("render_fps")
    return dt if isinstance(dt, float) and dt > 0 else 1.0 / (rate or 1.0)


# ---- spaces ----------------------------------------------------------------------------------------------------------


def observation_specs(space: spaces.Space[Any], env_id: str) -> dict[str, TensorSpec]:
    """Return the specs of an env's observations by name."""
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {OBS: space}
    return {name: _observed(part, f"gym:{env_id} observes {name}") for name, part in parts.items()}


def _observed(space: spaces.Space[Any], what: str) -> TensorSpec:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return TensorSpec((), torch.int64, 0, int(space.n) - 1, num_values=int(space.n))
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete | spaces.Discrete):
        shape: tuple[int, ...] = space.shape or ()
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            return TensorSpec(shape, torch.uint8, 0, 255)
        return TensorSpec(shape, torch.float32)
    raise ConfigError(
        f"{what} as a {type(space).__name__}, but it must be a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these."
    )


ToEnv = Callable[[Any], Sequence[Any]]  # a batch of actions -> one Gymnasium action per env


def action_spec_of(space: spaces.Space[Any], env_id: str) -> tuple[ActionSpec, ToEnv]:
    """Return the spec of an env's action, and a function that converts a batch of actions to one Gymnasium action per env."""
    if isinstance(space, spaces.Dict):
        parts = {name: _action(part, f"gym:{env_id} takes {name}") for name, part in space.spaces.items()}

        def many(action: Mapping[str, torch.Tensor]) -> list[Any]:
            columns = [to_env(action[name]) for name, (_, to_env) in parts.items()]
            return [dict(zip(parts, row, strict=True)) for row in zip(*columns, strict=True)]

        return {name: spec for name, (spec, _) in parts.items()}, many
    if isinstance(space, spaces.MultiDiscrete) and len({*space.nvec.flatten().tolist()}) > 1:
        counts = [int(n) for n in space.nvec.flatten()]
        names = [f"choice_{k}" for k in range(len(counts))]
        specs = [TensorSpec((), torch.int64, 0, n - 1, num_values=n) for n in counts]
        stack = _rows(np.int64, (-1, *space.nvec.shape))
        return dict(zip(names, specs, strict=True)), lambda action: stack(torch.stack([action[k] for k in names], -1))
    return _action(space, f"gym:{env_id} takes an action")


def _action(space: spaces.Space[Any], what: str) -> tuple[TensorSpec, ToEnv]:
    if isinstance(space, spaces.Discrete):
        spec = TensorSpec((), torch.int64, 0, int(space.n) - 1, num_values=int(space.n))
        return spec, lambda action: (action + int(space.start)).tolist()
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        values = 2 if isinstance(space, spaces.MultiBinary) else int(space.nvec.flatten()[0])
        shape: tuple[int, ...] = tuple(space.shape or ())
        return TensorSpec(shape, torch.int64, 0, values - 1, num_values=values), _rows(space.dtype)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = float(space.low.min()), float(space.high.max())
        if (space.low == low).all() and (space.high == high).all():
            return TensorSpec(tuple(space.shape), torch.float32, low, high), _rows(space.dtype)
        if space.is_bounded():
            half, middle = (space.high - space.low) / 2, (space.high + space.low) / 2
            spec = TensorSpec(tuple(space.shape), torch.float32, -1.0, 1.0)
            return spec, lambda action: (action.cpu().numpy() * half + middle).astype(space.dtype)
        return TensorSpec(tuple(space.shape), torch.float32), _rows(space.dtype)
    raise ConfigError(
        f"{what} of {space}, but it must be a float Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these."
    )


def _rows(dtype: Any, shape: tuple[int, ...] | None = None) -> ToEnv:
    return lambda action: action.cpu().numpy().astype(dtype).reshape(shape or action.shape)


def _numpy(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype
