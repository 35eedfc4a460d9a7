"""A TensorEnv as a TorchRL env of batch size [N].

TorchRL resets envs itself, by a masked `_reset` after the step in which they ended; a TensorEnv has begun the next episode
by then. So the adapter puts the last observation of the ended episode into `next`, and keeps the first observation of the
next episode until TorchRL resets. No episode is begun twice, and none is lost.

    TensorEnv        step: A ends ─ B begins        step in B …
    TorchRL          step → next = last of A        reset(_reset) → first of B        step in B …

Keys are flat: the keys of `observation_spec`, and `outcome` (a key of `TensorEnv.outcomes`), `episode_return` and
`episode_length`, which are 0 except in the `next` of the step that ended an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from fledge.core.errors import InputError
from fledge.core.extras import extra
from fledge.core.specs import TensorSpec
from fledge.envs.adapters.gymnasium import EPISODE_FIGURES, SeededAdapter
from fledge.envs.base import TensorEnv

with extra("torchrl"):
    from torchrl.data import Bounded, Categorical, Composite, Unbounded
    from torchrl.data import TensorSpec as TorchRLSpec
    from torchrl.envs import EnvBase


class TorchRLEnv(SeededAdapter, EnvBase):
    """TorchRL env over a TensorEnv, for TorchRL's collectors, transforms and rollouts.

    After `set_seed` the first episodes of that seed begin at once, and the next `reset` returns their first observations.

    In a partial step TorchRL passes a mask `_step` (as for `break_when_all_done`). Envs where it is false are returned
    unchanged. The TensorEnv steps them nevertheless, and they begin a new episode at their next reset. See `SeededAdapter` for
    the arguments.
    """

    def __init__(self, env: TensorEnv, make_env: Callable[[int], TensorEnv] | None = None) -> None:
        super().__init__(device=env.device, batch_size=[env.num_envs])
        self._hold(env, make_env)
        # Envs that have begun an episode but were not reset by TorchRL yet. Its first observation is in the buffers.
        self._unseen = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        taken = {"action", "reward", "done", "terminated", "truncated", "next", *EPISODE_FIGURES}
        if clash := sorted(taken & set(env.observation_spec)):
            raise InputError(
                f"The env has observations named {', '.join(clash)}, which TorchRL uses itself: rename them."
            )
        self._make_specs()

    @property
    def tensor_env(self) -> TensorEnv:
        return self.env

    def _make_specs(self) -> None:
        env, n = self.env, self.env.num_envs
        buffers = self._buffers
        figures = {k: Unbounded(shape=(n, 1), dtype=buffers[k].dtype, device=env.device) for k in EPISODE_FIGURES}
        entries = {k: spec_of(s, n, env.device) for k, s in env.observation_spec.items()}
        self.observation_spec = Composite({**entries, **figures}, shape=(n,), device=env.device)
        if isinstance(env.action_spec, TensorSpec):
            self.action_spec = spec_of(env.action_spec, n, env.device)
        else:
            parts = {k: spec_of(s, n, env.device) for k, s in env.action_spec.items()}
            self.action_spec = Composite({"action": Composite(parts, shape=(n,))}, shape=(n,), device=env.device)
        self.reward_spec = Unbounded(shape=(n, 1), dtype=torch.float32, device=env.device)
        flag = Categorical(2, shape=(n, 1), dtype=torch.bool, device=env.device)
        flags = {k: flag.clone() for k in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(flags, shape=(n,), device=env.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        if isinstance(action, TensorDictBase):
            action = dict(action.items())
        out = self.env.step(action, out=self._buffers)
        ended = out["terminated"] | out["truncated"]
        entries = {k: _choose(ended, out["final_obs"][k], v) for k, v in out["obs"].items()}
        for name in EPISODE_FIGURES:
            entries[name] = torch.where(ended, out[name], torch.zeros_like(out[name])).unsqueeze(-1)
        entries["reward"] = out["reward"].clone().unsqueeze(-1)
        flags = {"done": ended, "terminated": out["terminated"], "truncated": out["truncated"]}
        entries |= {k: v.clone().unsqueeze(-1) for k, v in flags.items()}
        self._unseen = ended
        moved = tensordict.get("_step", None)
        if moved is not None:
            moved = moved.reshape(self.batch_size)
            self._unseen = ended & moved
            still = {k: tensordict.get(k, torch.zeros_like(v)) for k, v in entries.items()}
            entries = {k: _choose(moved, v, still[k]) for k, v in entries.items()}
        return TensorDict(entries, self.batch_size, device=self.device)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = torch.ones_like(self._unseen)
        if tensordict is not None and (asked := tensordict.get("_reset", None)) is not None:
            mask = asked.reshape(self.batch_size)
        begin = mask & ~self._unseen
        if begin.any():
            # Writes the observations of every env again, so the first observations of other new episodes stay there.
            self.env.reset(begin, out=self._buffers)
        self._unseen = self._unseen & ~mask
        entries = {k: v.clone() for k, v in self._buffers["obs"].items()}
        for name in EPISODE_FIGURES:
            entries[name] = torch.zeros_like(self._buffers[name]).unsqueeze(-1)
        for name in ("done", "terminated", "truncated"):
            entries[name] = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
        return TensorDict(entries, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        self._reseed(seed)
        self.env.reset(out=self._buffers)
        self._unseen = torch.ones_like(self._unseen)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Release the env's threads."""
        self.env.close()
        self.is_closed = True


def spec_of(spec: TensorSpec, num_envs: int, device: torch.device) -> TorchRLSpec:
    """Return the TorchRL spec of a tensor with one row per env."""
    shape = (num_envs, *spec.shape)
    if spec.num_values is not None:
        return Categorical(spec.num_values, shape=shape, dtype=spec.dtype, device=device)
    if spec.bounded:
        return Bounded(spec.low, spec.high, shape=shape, dtype=spec.dtype, device=device)
    return Unbounded(shape=shape, dtype=spec.dtype, device=device)


def _choose(mask: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    """Return a new tensor with rows of `yes` where the mask is true and rows of `no` elsewhere."""
    return torch.where(mask.reshape(-1, *[1] * (yes.dim() - 1)), yes, no)
