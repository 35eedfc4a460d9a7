"""TorchEnv: base class of envs in plain torch. A subclass implements:

    class Hover(TorchEnv):
        outcomes = {0: "running", 1: "crash", 2: "timeout"}      # 0: still running; the last is the time limit

        def begin(self, mask): ...                 set self.state where the mask [N] is true
        def observe(self): ...                     dict of observations [N, ...] of all envs
        def advance(self, action): ...             move all envs by one decision; return reward [N], outcome [N]
        observation_spec, action_spec

The complete state is in `self.state`, a dict of tensors [N, ...]. The base class does the rest: auto-reset in the same
step, `final_obs`, the time limit (see `timeout_outcome`), returns and lengths, masked resets, saving the state.

Random numbers come from `self.uniform(*shape)` and `self.normal(*shape)`, in any of the three methods: functions of seed,
env, episode and step (counter-based, `core.random`), so that a masked reset changes no other env's future, observing twice
gives the same noise, and results do not depend on how envs are distributed over ranks.

    counter words = (env, episode, WORLD + 256 * steps since the episode began, number of the draw)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.random import M0, M1, ROUNDS, W0, W1, Purpose, split_seed
from fledge.envs.base import Action, TensorEnv, check_begun, check_duration, clear_results, fill

LOW = 0xFFFFFFFF
OBSERVING = 1 << 31  # first draw of `observe`; those of `begin` (step 0) and `advance` (steps 1, 2, ...) count from 0


class TorchEnv(TensorEnv):
    """Base class of envs in torch.

    Args:
        cfg: Settings, with `num_envs`.
        env_offset: Global index of the first env, if the envs of several TorchEnvs (of several ranks) belong together.
        total_envs: Number of envs of all these TorchEnvs.

    Attributes:
        state: Tensors [N, ...] by name; `begin` creates them at the first reset, when its mask is true everywhere.
        max_steps: Decisions after which an episode is truncated.
    """

    max_steps: int = 1000
    outcomes: Mapping[int, str] = {0: "running", 1: "terminated", 2: "truncated"}

    def __init__(
        self, cfg: Any, device: str = "cpu", seed: int = 0, env_offset: int = 0, total_envs: int | None = None
    ) -> None:
        super().__init__(cfg.num_envs, device, seed)
        self.cfg, self.env_offset, self.total_envs = cfg, env_offset, total_envs or cfg.num_envs
        self.state: dict[str, Tensor] = {}
        n = self.num_envs
        self._episode = torch.full((n,), -1, dtype=torch.int64, device=self.device)
        self._length = torch.zeros(n, dtype=torch.int32, device=self.device)
        self._return = torch.zeros(n, device=self.device)
        self._draw, self._begun = 0, False

    # ---- implemented by subclasses ----------------------------------------------------------------------------------

    @property
    def least_timeout(self) -> int:  # type: ignore[override]
        return self.max_steps

    @abstractmethod
    def begin(self, mask: Tensor) -> None:
        """Begin new episodes where the mask is true, without changing the rest of `self.state` (see `put`)."""

    @abstractmethod
    def observe(self) -> Mapping[str, Tensor]:
        """Return the observations of all envs; the caller copies them. Must not change the state."""

    @abstractmethod
    def advance(self, action: Any) -> tuple[Tensor, Tensor]:
        """Move all envs by one decision; return reward [N] and outcome [N], 0 where the episode continues."""

    def timeout_outcome(self) -> Tensor | int:
        """Return the outcome of episodes that reach the time limit: one number for all, or [N]."""
        return max(self.outcomes)

    # ---- helpers for subclasses -------------------------------------------------------------------------------------

    def put(self, name: str, mask: Tensor, value: Tensor) -> None:
        """Write rows of a state tensor where the mask is true; create the tensor if it does not exist."""
        if name not in self.state:
            self.state[name] = torch.zeros_like(value)
        wide = mask.view(-1, *[1] * (value.dim() - 1))
        self.state[name] = torch.where(wide, value, self.state[name])

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform random numbers in [0, 1), [N, *shape]: new in every call, and the same in all runs of one seed."""
        count = math.prod(shape)
        blocks = -(-count // 4)
        draws = self._draw + torch.arange(blocks, device=self.device)
        self._draw += blocks
        envs = self.env_offset + torch.arange(self.num_envs, device=self.device)
        purpose = int(Purpose.WORLD) + 256 * self._length.long()
        words = philox(envs[:, None], self._episode[:, None], purpose[:, None], draws[None, :], self.seed)
        numbers = (words >> 8).float() * 2.0**-24
        return numbers.reshape(self.num_envs, -1)[:, :count].reshape(self.num_envs, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal random numbers [N, *shape] (Box-Muller), drawn as `uniform` draws them."""
        u, v = self.uniform(2, *shape).unbind(1)
        return (-2.0 * (1.0 - u).log()).sqrt() * (2.0 * math.pi * v).cos()

    # ---- reset and step -------------------------------------------------------------------------------------------------

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        mask = self.check_mask(env_mask, self._begun)
        into = self.check_buffers(out)
        self._begin(mask)
        self._begun = True
        self._write(into["obs"], self._observe())
        clear_results(into)
        return into

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        check_duration(dt, self.decision_s)
        check_begun(self._begun)
        self.check_action(action)
        into = self.check_buffers(out)
        self._length += 1
        self._draw = 0
        reward, outcome = self.advance(action)
        for name, value in (("reward", reward), ("outcome", outcome)):
            if tuple(value.shape) != (self.num_envs,):
                raise InputError(
                    f"advance returned {name} of shape {tuple(value.shape)}, but must return ({self.num_envs},)."
                )
        self._return += reward
        truncated = (outcome == 0) & (self._length >= self.max_steps)
        outcome = torch.where(truncated, self.timeout_outcome(), outcome)
        ended = outcome != 0
        results = {"reward": reward, "terminated": ended & ~truncated, "truncated": truncated, "outcome": outcome}
        fill(into, {**results, "episode_return": self._return, "episode_length": self._length})
        observed = self._observe()
        if ended.is_cuda or ended.any():  # reading it would wait for a GPU
            if "final_obs" in into.keys():  # noqa: SIM118
                self._write(into["final_obs"], observed)
            self._begin(ended)
            observed = self._observe()
        self._write(into["obs"], observed)
        return into

    def _begin(self, mask: Tensor) -> None:
        self._episode = self._episode + mask.long()
        self._length = self._length.masked_fill(mask, 0)
        self._return = self._return.masked_fill(mask, 0.0)
        self._draw = 0
        self.begin(mask)

    def _observe(self) -> Mapping[str, Tensor]:
        self._draw = OBSERVING
        return self.observe()

    def _write(self, into: TensorDict, observed: Mapping[str, Tensor]) -> None:
        for name, spec in self.observation_spec.items():
            value, expected = observed.get(name), (self.num_envs, *spec.shape)
            if value is None or tuple(value.shape) != expected:
                found = "nothing" if value is None else f"shape {tuple(value.shape)}"
                raise InputError(f"observe returned {found} for {name}, but observation_spec says {expected}.")
            into[name].copy_(value)

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        counters = {"episode": self._episode, "length": self._length, "return": self._return}
        return {
            "state": {k: v.clone() for k, v in self.state.items()},
            "counters": {k: v.clone() for k, v in counters.items()},
            "seed": self.seed,
            "env_offset": self.env_offset,
            "begun": self._begun,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state, ("state", "counters", "begun"), seed=self.seed, env_offset=self.env_offset)
        if len(state["counters"]["episode"]) != self.num_envs:
            raise InputError(
                f"The state was saved with num_envs={len(state['counters']['episode'])}, but this env has "
                f"num_envs={self.num_envs}. Make the env with the saved num_envs."
            )
        self.state = {k: v.to(self.device).clone() for k, v in state["state"].items()}
        counters = {k: v.to(self.device).clone() for k, v in state["counters"].items()}
        self._episode, self._length, self._return = (counters[k] for k in ("episode", "length", "return"))
        self._begun = bool(state["begun"])


def philox(env: Tensor, time: Tensor, purpose: Tensor, draw: Tensor, seed: int) -> Tensor:
    """Return four 32-bit random words, [..., 4] int64, for int64 tensors of counters; the function of `core.random.philox`."""
    c0, c1, c2, c3 = torch.broadcast_tensors(env & LOW, time & LOW, purpose & LOW, draw & LOW)
    k0, k1 = split_seed(seed)
    for _ in range(ROUNDS):
        p0, p1 = c0 * M0, c2 * M1  # int64 overflow wraps around, which keeps all 64 bits
        c0, c1, c2, c3 = (p1 >> 32 & LOW) ^ c1 ^ k0, p1 & LOW, (p0 >> 32 & LOW) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return torch.stack([c0, c1, c2, c3], dim=-1)
