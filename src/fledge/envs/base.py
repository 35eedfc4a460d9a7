"""The TensorEnv contract: thousands of envs in one object that takes and returns tensors.

Buffers. `step` and `reset` write into the TensorDict passed as `out`, which belongs to the caller, and return it.
`make_buffers()` makes one. Without `out`, each call returns new buffers. The env never writes again to buffers that it
returned unless the caller passes them as `out`.

    out["obs"]              TensorDict of observations, one entry per key of observation_spec       [N, ...]
    out["reward"]           float32                                                                  [N]
    out["terminated"]       bool: ended by success or crash; the value after the end is 0            [N]
    out["truncated"]        bool: ended by nothing but the time limit; bootstrap from final_obs      [N]
    out["outcome"]          uint8: how the episode ended, a key of `outcomes`; 0 while it runs       [N]
    out["episode_return"]   float32, and "episode_length", int32 decisions; see below               [N]
    out["final_obs"]        like obs: the last observation of the ended episode; see below           [N, ...]

The last three entries are valid only where an episode ended.
Auto-reset happens in the same step: where an episode ended, `obs` is already the first observation of the next one.
`reset(env_mask)` begins new episodes only where the mask is true and leaves all other envs untouched.

An action is one tensor [N, ...], or a dict of them where `action_spec` is a dict.

Scalars for the log. In a step or reset, an env (or wrapper, or reward function) may call

    self.log_scalar("height", height)                    float, or tensor of any shape; its mean is logged
    self.log_scalar("speed_at_end", speed, where=ended)  only the entries where the mask is true

Training logs the mean over envs, steps and ranks of each iteration as `env/NAME`. The env holds the running sums on its
device, so logging does not wait for a GPU. `take_log()` returns the sums and resets them; collectors call it after every
rollout. Sums are not part of `state_dict`.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from tensordict import TensorDict

from fledge.core.errors import InputError
from fledge.core.specs import ActionSpec, TensorSpec

Action = torch.Tensor | Mapping[str, torch.Tensor]
Log = dict[str, tuple[torch.Tensor | float, torch.Tensor | int]]  # sum and count of logged values by name
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # dtypes of continuous actions
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # dtypes of discrete actions


class TensorEnv(ABC):
    """Base class: many envs of one task. Subclasses implement the specs, physics and state."""

    outcomes: Mapping[int, str] = {}
    """Name of each value of `outcome`, such as {0: "running", 1: "success"}."""
    decision_s: float = 1.0
    """Simulated seconds per step."""
    one_clock: bool = True
    """Whether all episodes are truncated after the same number of steps."""
    least_timeout: int = 1
    """Steps that lie at least between two truncations of one row; 1 if that is unknown. Collectors on CUDA use it."""
    resumes_exactly: bool = True
    """Whether an env that loads a `state_dict` continues exactly; if false, a resumed run begins new episodes."""
    group: int = 1
    """Number of consecutive rows that share an episode, such as both sides of a duel; they begin and end together."""

    def __init__(self, num_envs: int, device: str, seed: int) -> None:
        if num_envs < 1:
            raise InputError(f"num_envs is {num_envs}, but must be at least 1.")
        if not 0 <= seed < 2**63:
            raise InputError(f"seed is {seed}, but must lie between 0 and 2**63 - 1.")
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.seed = seed
        self._log: Log = {}

    @property
    def unwrapped(self) -> TensorEnv:
        """Env inside all wrappers."""
        return self

    def log_scalar(self, name: str, value: torch.Tensor | float, where: torch.Tensor | None = None) -> None:
        """Add values to the mean that training logs as `env/NAME`; with a bool mask `where`, only those where it is true."""
        added: torch.Tensor | float
        count: torch.Tensor | int
        if not isinstance(value, torch.Tensor | float | int):
            raise InputError(f"log_scalar({name!r}) got a {type(value).__name__}, but must get a tensor or a number.")
        if where is not None and where.dtype is not torch.bool:
            raise InputError(f"log_scalar({name!r}) got a mask `where` of {where.dtype}, but it must be torch.bool.")
        if where is not None:
            chosen = torch.where(where, value, 0.0).detach()
            added, count = chosen.sum(dtype=torch.float64), where.expand_as(chosen).sum()
        elif isinstance(value, torch.Tensor):
            added, count = value.detach().sum(dtype=torch.float64), value.numel()
        else:
            added, count = float(value), 1
        total, seen = self._log.get(name, (0.0, 0))
        self._log[name] = total + added, seen + count

    def take_log(self) -> Log:
        """Return by name the sum and the number of the values logged since the last call, and reset both to 0."""
        taken, self._log = self._log, {}
        return taken

    @property
    @abstractmethod
    def observation_spec(self) -> dict[str, TensorSpec]:
        """Specs of the observations, by name."""

    @property
    @abstractmethod
    def action_spec(self) -> ActionSpec:
        """Spec of the action, or a dict of specs if the action is a dict."""

    @abstractmethod
    def reset(self, env_mask: torch.Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        """Begin new episodes (in all envs, or where the mask is true) and write every env's observation to out["obs"]."""

    @abstractmethod
    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        """Advance every env by one decision; `dt` sets the simulated time of the decision, s, if the task supports that."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the complete state: physics, counters, random streams. Tensors are copies."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`, to continue exactly from there."""

    def close(self) -> None:
        """Release threads and buffers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def make_buffers(self) -> TensorDict:
        """Return zeroed buffers for `out`, which belong to the caller."""
        batch = (self.num_envs,)
        dtypes = {"reward": torch.float32, "terminated": torch.bool, "truncated": torch.bool, "outcome": torch.uint8}
        dtypes |= {"episode_return": torch.float32, "episode_length": torch.int32}
        parts: dict[str, Any] = {"obs": make_action_buffer(self.observation_spec, batch, self.device)}
        parts |= {name: torch.zeros(batch, dtype=dtype, device=self.device) for name, dtype in dtypes.items()}
        parts["final_obs"] = make_action_buffer(self.observation_spec, batch, self.device)
        return TensorDict(parts, batch)

    def check_buffers(self, out: TensorDict | None) -> TensorDict:
        """Return `out`, or new buffers if it is None; raise InputError if its observations do not match the specs."""
        if out is None:
            return self.make_buffers()
        for name, spec in self.observation_spec.items():
            expected, tensor = (self.num_envs, *spec.shape), out.get(("obs", name), None)
            if tensor is None or tuple(tensor.shape) != expected or tensor.dtype != spec.dtype:
                raise InputError(
                    f"out must have obs.{name} of {spec.dtype} {expected}: make it with env.make_buffers()."
                )
        return out

    def check_state(self, state: Mapping[str, Any], keys: Iterable[str], **expected: int) -> None:
        """Raise InputError unless a saved state has the entries `keys`, and the values in `expected` under their names."""
        if missing := [key for key in (*keys, *expected) if key not in state]:
            raise InputError(
                f"This is not a state of a {type(self).__name__}: it has no {', '.join(missing)}. Pass one from state_dict()."
            )
        for name, value in expected.items():
            if int(state[name]) != value:
                raise InputError(
                    f"The state was saved by an env with {name}={state[name]}, but this env has {name}={value}. "
                    f"Make the env with {name}={state[name]} to continue."
                )

    def check_action(self, action: Action, what: str = "The action", rows: int | None = None) -> None:
        """Raise InputError unless the action has the shape, dtype and device of the spec, and finite, allowed values.

        Args:
            what: The action's name at the beginning of the message.
            rows: Number of rows of the action; by default one for each env.
        """
        spec, rows = self.action_spec, self.num_envs if rows is None else rows
        if isinstance(spec, TensorSpec):
            return self._check_tensor(what, action, spec, rows)
        if not isinstance(action, (Mapping, TensorDict)):
            raise InputError(
                f"{what} is a {type(action).__name__}, but must be a dict with the keys {', '.join(spec)}."
            )
        if set(action.keys()) != set(spec):
            got = ", ".join(map(str, action.keys())) or "none"
            raise InputError(f"{what} has the keys {got}, but must have the keys {', '.join(spec)}.")
        for name, part in spec.items():
            self._check_tensor(f"{what}'s {name}", action[name], part, rows)

    def _check_tensor(self, what: str, action: Any, spec: TensorSpec, rows: int) -> None:
        expected = (rows, *spec.shape)
        if not isinstance(action, torch.Tensor):
            raise InputError(f"{what} is a {type(action).__name__}, but must be a torch.Tensor of shape {expected}.")
        if action.layout != torch.strided or action.is_nested:
            kind = "nested" if action.is_nested else action.layout
            raise InputError(f"{what} is {kind}, but must be a dense tensor of shape {expected}.")
        if tuple(action.shape) != expected:
            raise InputError(f"{what} has shape {tuple(action.shape)}, but must have {expected}.")
        if action.device.type != self.device.type:
            raise InputError(f"{what} is on {action.device}, but must be on the env's device, {self.device}.")
        discrete, last = spec.num_values is not None, (spec.num_values or 0) - 1
        if action.dtype not in (INTEGERS if discrete else FLOATS):
            values = f", with values from 0 to {last}" if discrete else ""
            raise InputError(f"{what} has dtype {action.dtype}, but must have {spec.dtype}{values}.")
        if self.device.type != "cpu":
            return  # the checks below would wait for the device; kernels there treat NaN as the lower bound
        wrong = (action < 0) | (action > last) if discrete else ~torch.isfinite(action)
        if wrong.any():
            bad = int(wrong.reshape(rows, -1).any(1).nonzero()[0])
            allowed = f"0 to {last}" if discrete else "finite"
            raise InputError(f"{what} of env {bad} is {action[bad].tolist()}, but must be {allowed}.")

    def check_mask(self, env_mask: torch.Tensor | None, begun: bool) -> torch.Tensor:
        """Return the mask of a reset, [N] bool; None means all envs.

        Raise InputError if it is invalid, or if the first reset (`begun` is false) does not include every env.
        """
        if env_mask is None:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        came = f"a {type(env_mask).__name__}"
        if isinstance(env_mask, torch.Tensor):
            kind = "" if env_mask.layout == torch.strided else f"{env_mask.layout} "
            came = f"{kind}{env_mask.dtype} {tuple(env_mask.shape)} on {env_mask.device.type}"
        if came != f"{torch.bool} {(self.num_envs,)} on {self.device.type}":
            raise InputError(
                f"env_mask must be a bool tensor of shape ({self.num_envs},) on {self.device.type}, not {came}."
            )
        together = env_mask.view(-1, self.group)
        if self.group > 1 and not torch.equal(together, together[:, :1].expand_as(together)):
            raise InputError(
                f"env_mask splits an episode: it must have one value in each group of {self.group} consecutive rows."
            )
        if not begun and not env_mask.all():
            raise InputError("The first reset must begin an episode in every env: call reset() without a mask first.")
        return env_mask


def check_duration(dt: Any, decision_s: float, fix: str = "leave dt out") -> None:
    """Raise InputError unless `dt` is None or `decision_s`, the duration of a decision, s; the message ends with `fix`.

    For envs whose decisions all last equally long.
    """
    if dt is None or (isinstance(dt, numbers.Real) and math.isclose(dt, decision_s)):
        return
    raise InputError(f"dt is {dt!r}, but a decision of this env always lasts {decision_s} s: {fix}.")


def check_begun(begun: bool) -> None:
    """Raise InputError if `begun` is false: a step needs a reset before it."""
    if not begun:
        raise InputError("step() was called before reset(): call reset() once to begin the first episodes.")


def fill(out: TensorDict, values: Mapping[str, torch.Tensor]) -> None:
    """Copy values to the entries of `out` with the same names; names that `out` lacks are skipped."""
    for name in out.keys() & values.keys():
        out[name].copy_(values[name])


def clear_results(out: TensorDict) -> None:
    """Set reward, terminated, truncated and outcome to zero, as far as `out` has them."""
    for name in out.keys() & {"reward", "terminated", "truncated", "outcome"}:
        out[name].zero_()


def add_logs(logs: Iterable[Log]) -> Log:
    """Return one log with the added sums and counts of several envs' logs."""
    total: Log = {}
    for log in logs:
        for name, (value, count) in log.items():
            before, seen = total.get(name, (0.0, 0))
            total[name] = before + value, seen + count
    return total


def make_action_buffer(spec: ActionSpec, batch: tuple[int, ...], device: torch.device) -> Any:
    """Return a zeroed tensor [*batch, *spec.shape] or, if the spec is a dict, a TensorDict of such tensors."""
    if isinstance(spec, TensorSpec):
        return torch.zeros((*batch, *spec.shape), dtype=spec.dtype, device=device)
    return TensorDict({name: make_action_buffer(part, batch, device) for name, part in spec.items()}, list(batch))


def write_action(place: Any, action: Action) -> None:
    """Copy an action to a buffer from `make_action_buffer`."""
    if isinstance(action, torch.Tensor):
        place.copy_(action)
    else:
        for name, part in action.items():
            place[name].copy_(part)
