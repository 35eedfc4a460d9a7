"""A TensorEnv as a Gymnasium vector env or, if it holds one env, as a Gymnasium env, with NumPy arrays.

The vector env resets in the same step, as Gymnasium's own do with `AutoresetMode.SAME_STEP`: where an episode ended, `obs` is
already the first observation of the next one, and `infos` holds

    infos["final_obs"]      [N] objects: dict of the episode's last observation, else None           "_final_obs": mask
    infos["final_info"]     results of the episode, each [N] with its own mask                       "_final_info": mask

The results of an ended episode are `outcome` (the name in `TensorEnv.outcomes`, such as "success"), `outcome_code` (its
number), `episode_return` and `episode_length`.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fledge.core.errors import InputError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.base import Action, TensorEnv

Array = npt.NDArray[Any]
EPISODE_FIGURES = ("outcome", "episode_return", "episode_length")


class SeededAdapter:
    """Base class of adapters: holds the env, closes it, and replaces it for another seed.

    A TensorEnv is built for one seed. If reset with that seed, the adapter restores the env's initial state; for another
    seed it replaces the env by `make_env(seed)`, or raises InputError without make_env. Pass an env that was not stepped
    yet, because its state at that time counts as its initial state.
    """

    env: TensorEnv
    _waiting = False  # whether the buffers hold the first observations of an episode that the caller has not begun yet

    def _hold(self, env: TensorEnv, make_env: Callable[[int], TensorEnv] | None) -> None:
        self.env, self._make_env = env, make_env
        self._initial, self._buffers = env.state_dict(), env.make_buffers()

    def _reseed(self, seed: int) -> None:
        env = self.env
        if not isinstance(seed, numbers.Integral):
            raise InputError(f"seed is {seed!r}, but must be one integer for all envs.")
        if int(seed) == env.seed:
            env.load_state_dict(self._initial)
            return
        if self._make_env is None:
            raise InputError(
                f"The adapter got seed {seed}, but this env was built for seed {env.seed}: pass that seed or no seed, or "
                "make the adapter with make_env=..., a function from a seed to an env."
            )
        other = self._make_env(int(seed))
        specs = [(each.num_envs, each.observation_spec, each.action_spec) for each in (env, other)]
        if specs[0] != specs[1]:
            other.close()
            raise InputError(
                f"make_env({seed}) made an env with another num_envs or other specs: it may change only the seed."
            )
        env.close()
        self.env, self._initial = other, other.state_dict()

    def _begin_episode(self, seed: int | None) -> None:
        """Begin an episode; without a seed, use the episode that the env has begun by auto-reset, if any."""
        if seed is not None:
            self._reseed(seed)
        if seed is not None or not self._waiting:
            self.env.reset(out=self._buffers)
        self._waiting = False

    def close(self) -> None:
        """Release the env's threads."""
        self.env.close()


class GymnasiumVectorEnv(VectorEnv, SeededAdapter):
    """Gymnasium vector env over a TensorEnv. Returned arrays are never changed later. `SeededAdapter` explains seeds."""

    def __init__(self, env: TensorEnv, make_env: Callable[[int], TensorEnv] | None = None) -> None:
        self._hold(env, make_env)
        self.num_envs = env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
        self.single_observation_space = spaces.Dict({k: space_of(s) for k, s in env.observation_spec.items()})
        self.single_action_space = action_space_of(env.action_spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin new episodes and return the observations of all envs.

        Args:
            seed: Start over as a new env of this seed would.
            options: {"reset_mask": [N] bool array} begins new episodes only where the mask is true.
        """
        mask = self._reset_mask(options or {})
        if seed is not None:
            if mask is not None:
                raise InputError("reset got a seed and a reset_mask, but a seed restarts every env: pass one of them.")
            self._reseed(seed)
        super().reset(seed=seed)
        self.env.reset(mask, out=self._buffers)
        return copies(self._buffers["obs"]), {}

    def step(self, actions: Any) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """Advance every env by one decision; return observations, rewards, terminations, truncations, infos."""
        out = self.env.step(read_actions(actions, self.env, self.action_space), out=self._buffers)
        flags = copy_of(out["terminated"]), copy_of(out["truncated"])
        return copies(out["obs"]), copy_of(out["reward"]), *flags, self._infos(flags[0] | flags[1])

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()

    def _infos(self, ended: Array) -> dict[str, Any]:
        """Return the infos of the episodes that ended in this step; empty if none did."""
        if not ended.any():
            return {}
        index = np.flatnonzero(ended)
        rows = {k: copy_of(v[torch.as_tensor(index, device=v.device)]) for k, v in self._buffers["final_obs"].items()}
        final_obs = np.full(self.num_envs, None, dtype=object)
        for row, env in enumerate(index):
            final_obs[env] = {k: v[row] for k, v in rows.items()}
        final_info: dict[str, Any] = {}
        for name, figure in zip(("outcome_code", *EPISODE_FIGURES[1:]), EPISODE_FIGURES, strict=True):
            values = copy_of(self._buffers[figure])
            final_info |= {name: np.where(ended, values, values.dtype.type(0)), f"_{name}": ended.copy()}
        names = np.full(self.num_envs, None, dtype=object)
        names[index] = [outcome_name(self.env, code) for code in final_info["outcome_code"][index]]
        final_info |= {"outcome": names, "_outcome": ended.copy()}
        final = {"final_obs": final_obs, "final_info": final_info}
        return final | {f"_{name}": ended.copy() for name in final}

    def _reset_mask(self, options: Mapping[str, Any]) -> torch.Tensor | None:
        if unknown := sorted(set(options) - {"reset_mask"}):
            raise InputError(f"options has {', '.join(unknown)}, but only reset_mask is allowed: leave others out.")
        mask = options.get("reset_mask")
        if mask is None:
            return None
        good = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
        if not good or not mask.any():
            raise InputError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},) that is true somewhere, "
                f"not {getattr(mask, 'dtype', type(mask).__name__)} of shape {np.shape(mask)}."
            )
        return torch.as_tensor(mask, device=self.env.device)


class GymnasiumEnv(SeededAdapter, gymnasium.Env):
    """Gymnasium env over a TensorEnv with num_envs = 1; the caller must call `reset` after the end of an episode.

    The step that ends an episode returns its last observation, and `info` with `outcome`, `outcome_code`, `episode_return`
    and `episode_length`. Where not every action is allowed, `info["action_mask"]` is the mask for
    `action_space.sample(mask=...)`. `SeededAdapter` explains seeds.
    """

    metadata = {"render_modes": []}

    def __init__(self, env: TensorEnv, make_env: Callable[[int], TensorEnv] | None = None) -> None:
        if env.num_envs != 1:
            raise InputError(
                f"The env holds {env.num_envs} envs, but GymnasiumEnv needs num_envs=1: use GymnasiumVectorEnv."
            )
        self._hold(env, make_env)
        self.observation_space = spaces.Dict({k: space_of(s) for k, s in env.observation_spec.items()})
        self.action_space = action_space_of(env.action_spec)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode and return observation and info; with a seed, begin as a new env of this seed would."""
        if options:
            raise InputError(f"options has {', '.join(sorted(options))}, but no option is allowed: leave options out.")
        super().reset(seed=seed)
        self._begin_episode(seed)
        obs = self._row("obs")
        return obs, masks_in(obs, self.env.action_spec)

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Advance by one decision; return observation, reward, terminated, truncated, info."""
        if self._waiting:
            raise InputError("The episode is over: call reset() before the next step().")
        is_dict = isinstance(action, Mapping)
        rows = {k: [v] for k, v in action.items()} if is_dict else [action]
        out = self.env.step(read_actions(rows, self.env, self.action_space), out=self._buffers)
        terminated, truncated = bool(out["terminated"][0]), bool(out["truncated"][0])
        self._waiting = terminated or truncated
        obs = self._row("final_obs" if self._waiting else "obs")
        info = masks_in(obs, self.env.action_spec)
        if self._waiting:
            info |= episode_figures(self.env, out, 0)
        return obs, float(out["reward"][0]), terminated, truncated, info

    def _row(self, name: str) -> dict[str, Array]:
        return {k: copy_of(v[0]) for k, v in self._buffers[name].items()}


def outcome_name(env: TensorEnv, code: int) -> str:
    """Return the env's name of an outcome code, or the code as text if the env has no name for it."""
    return env.outcomes.get(int(code), str(int(code)))


def episode_figures(env: TensorEnv, out: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return outcome, return and length of the episode that ended in row `row` of a step's result `out`."""
    code, total, length = (out[name][row].item() for name in EPISODE_FIGURES)
    name = outcome_name(env, code)
    return {"outcome": name, "outcome_code": code, "episode_return": total, "episode_length": length}


def action_space_of(spec: ActionSpec) -> spaces.Space:
    """Return the Gymnasium space of one env's action."""
    if isinstance(spec, TensorSpec):
        return space_of(spec)
    return spaces.Dict({name: space_of(part) for name, part in spec.items()})


def space_of(spec: TensorSpec) -> spaces.Space:
    """Return the Gymnasium space of one env's tensor, such as an observation."""
    if spec.num_values is not None and spec.shape:
        return spaces.MultiDiscrete(np.full(spec.shape, spec.num_values))
    if spec.num_values is not None:
        return spaces.Discrete(spec.num_values)
    dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
    return spaces.Box(spec.low, spec.high, spec.shape, dtype.type)


def masks_in(obs: Mapping[str, Array], spec: ActionSpec) -> dict[str, Any]:
    """Return {"action_mask": mask} from one env's observation, or {} if the action has no mask.

    The mask has the form that `Space.sample` takes: for a space of several choices, a tuple of masks.
    """

    def mask_of(part: TensorSpec) -> Any:
        if part.mask is None:
            return None
        mask = obs[part.mask].astype(np.int8)
        return mask if not part.shape else tuple(mask)

    if isinstance(spec, TensorSpec):
        return {} if spec.mask is None else {"action_mask": mask_of(spec)}
    masks = {name: mask_of(part) for name, part in spec.items()}
    return {"action_mask": masks} if any(mask is not None for mask in masks.values()) else {}


def read_actions(actions: Any, env: TensorEnv, space: spaces.Space) -> Action:
    """Return the actions of all envs, given as arrays, tensors or lists, as tensors on the env's device.

    Booleans become integers. In a dict of actions, integers become floats where the spec has floats. `space` is the Gymnasium
    space of `actions`, for error messages.
    """

    def read(part: Any, spec: TensorSpec | None) -> torch.Tensor:
        array = np.array(part.detach().cpu() if isinstance(part, torch.Tensor) else part)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"their dtype is {array.dtype}")
        if array.dtype.kind != "f":
            array = array.astype(np.float32 if spec is not None and spec.num_values is None else np.int64)
        return torch.as_tensor(array.astype(array.dtype.newbyteorder("=")), device=env.device)

    specs = env.action_spec
    if not isinstance(specs, TensorSpec) and not isinstance(actions, Mapping):
        raise InputError(
            f"The actions are a {type(actions).__name__}, but must be a dict: pass a value of the space {space}."
        )
    try:
        if isinstance(specs, TensorSpec):
            return read(actions, None)
        return {name: read(part, specs.get(name)) for name, part in actions.items()}
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).partition(". ")[0]
        raise InputError(
            f"The actions are not arrays of numbers ({reason}): pass a value of the space {space}."
        ) from error


def copy_of(tensor: torch.Tensor) -> Array:
    """Return a copy of a tensor as a NumPy array."""
    return np.array(tensor.cpu().numpy())


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {k: copy_of(v) for k, v in tensors.items()}
