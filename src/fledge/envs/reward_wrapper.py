"""RewardWrapper: replaces the reward of any env. Only `reward` and `episode_return` change.

    def my_reward(env, action, out):            after every step, all envs at once; returns [N]
        return out["reward"] - 0.1 * action.abs().sum(-1)

    class MyReward:                             with a state per episode: tensors [N, ...] in `state`, which is saved
        def reset(self, env, mask): ...         called where the mask is true, as an episode begins; the first time for all
        def __call__(self, env, action, out): ...

`out` is the result of the step: `out["reward"]` is the env's own reward, and where an episode ended, `out["obs"]` is already
the first observation of the next one. `reached(out)` returns the observations at the end of the step for all envs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.code import find_object
from fledge.core.errors import ConfigError, FledgeError, InputError
from fledge.envs.base import Action, TensorEnv
from fledge.envs.wrapper import EnvWrapper

Reward = Callable[[TensorEnv, Action, TensorDict], Tensor]


def find_reward(reference: str) -> Reward:
    """Return the reward that `module:object` or `file.py:object` names; if that is a class, return a new object of it."""
    found = find_object(reference)
    try:
        reward = found() if isinstance(found, type) else found
    except TypeError as error:
        raise ConfigError(
            f"{reference} cannot be made without arguments: {error}. Give its arguments defaults."
        ) from error
    if not callable(reward):
        raise ConfigError(
            f"{reference} is a {type(reward).__name__}, but must be callable as reward(env, action, out)."
        )
    try:
        signature(reward).bind(None, None, None)
    except TypeError as error:
        takes = f"takes the arguments {signature(reward)}, but must take three: (env, action, out)"
        raise ConfigError(f"{reference} {takes}.") from error
    except ValueError:  # it has no signature
        pass
    return reward


def reached(out: TensorDict) -> dict[str, Tensor]:
    """Return the observations at the end of a step: `final_obs` where an episode ended, `obs` elsewhere."""
    ended = out["terminated"] | out["truncated"]
    if ended.device.type == "cpu" and not ended.any():  # on CUDA, this check would wait for the device
        return dict(out["obs"].items())

    shaped = {now.dim(): ended.view(-1, *[1] * (now.dim() - 1)) for now in out["obs"].values()}
    return {name: torch.where(shaped[now.dim()], out["final_obs"][name], now) for name, now in out["obs"].items()}


def call_reward(name: str, call: Callable[[], Any]) -> Any:
    """Return the result of a user's reward; if it fails, raise InputError that names the line."""
    try:
        return call()
    except FledgeError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[2:]  # the first line of the reward itself
        at = f" in {where[0].filename}, line {where[0].lineno}" if where else ", called as reward(env, action, out)"
        said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
        raise InputError(
            f"The reward {name} failed{at}: {said}. On the command line, --debug shows the traceback."
        ) from error


def check_reward(name: str, reward: Any, num_envs: int) -> Tensor:
    """Return the values of a user's reward; raise InputError unless they are one finite number per env."""
    if not isinstance(reward, Tensor) or tuple(reward.shape) != (num_envs,):
        got = f"shape {tuple(reward.shape)}" if isinstance(reward, Tensor) else type(reward).__name__
        raise InputError(f"The reward {name} returned {got}, but must return a tensor of shape ({num_envs},).")
    # Not on CUDA, where this check would wait for the device; the learner detects NaN there.
    if reward.device.type == "cpu" and not torch.isfinite(reward).all():
        bad = int((~torch.isfinite(reward)).nonzero()[0])
        raise InputError(f"The reward {name} returned {reward[bad].item()} for env {bad}, but must be finite.")
    return reward


class RewardWrapper(EnvWrapper):
    """Replaces the reward of an env by a function or object, called as reward(env, action, out) after every step."""

    def __init__(self, env: TensorEnv, reward: Reward) -> None:
        super().__init__(env)
        self.reward = reward
        self._return = torch.zeros(env.num_envs, device=self.device)
        self._spare = env.make_buffers()  # for entries that the caller's buffers lack

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        result = self.env.reset(env_mask, out=out)
        self._begin(torch.ones_like(self._return, dtype=torch.bool) if env_mask is None else env_mask)
        return result

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = self.env.step(action, dt, out=None if out is None else self._completed(out))
        with torch.no_grad():
            paid = call_reward(self.name, lambda: self.reward(self.unwrapped, action, result))
            reward = check_reward(self.name, paid, self.num_envs)
        result["reward"].copy_(reward)
        self._return += reward
        result["episode_return"].copy_(self._return)
        ended = result["terminated"] | result["truncated"]
        if self.device.type != "cpu" or ended.any():
            self._begin(ended)
        return result if out is None else out

    def _begin(self, mask: Tensor) -> None:
        self._return = self._return.masked_fill(mask, 0.0)
        if hasattr(self.reward, "reset"):
            self.reward.reset(self.unwrapped, mask)

    def _completed(self, out: TensorDict) -> TensorDict:
        """Return the caller's buffers, with the wrapper's own buffers for entries that are missing."""
        missing = {name: value for name, value in self._spare.items() if name != "obs" and name not in out.keys()}  # noqa: SIM118
        return TensorDict({**dict(out.items()), **missing}, [self.num_envs]) if missing else out

    @property
    def name(self) -> str:
        return str(getattr(self.reward, "__name__", type(self.reward).__name__))

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        memory: Mapping[str, Tensor] = getattr(self.reward, "state", {})
        kept = {name: value.clone() for name, value in memory.items()}
        return {"env": self.env.state_dict(), "return": self._return.clone(), "memory": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state, ("env", "return", "memory"))
        if len(state["return"]) != self.num_envs:
            raise InputError(
                f"The state was saved with num_envs={len(state['return'])}, but this env has num_envs={self.num_envs}. "
                "Make the env with the saved num_envs."
            )
        self.env.load_state_dict(state["env"])
        self._return = state["return"].to(self.device).clone()
        if state["memory"]:
            memory = {name: value.to(self.device).clone() for name, value in state["memory"].items()}
            self.reward.state = memory  # type: ignore[attr-defined]
