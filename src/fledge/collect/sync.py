"""SyncDataCollector: fly, and write everything into one preallocated rollout. No copies: the env writes into its slot.

The rollout is a TensorDict [T, N], time-major, allocated once:

    obs/*          what was acted on                    input      what the network read, [T, N, F]
    raw            sampled action, learner's form       action     what the env got
    log_prob       density of raw when it was sampled   value      predicted value of obs, reward units
    next_value     value of what followed: V(final_obs) where truncated, else V(next obs)
    reward, terminated, truncated, outcome, episode_return, episode_length

Row t of `obs` is written by the env's step t - 1; the step after the last row writes into a spare slot, which becomes
row 0 of the next rollout.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv

ExplorationType = Literal["random", "deterministic"]


class SyncDataCollector:
    """Collects rollouts of a policy in an env, one after the other.

    Args:
        env: Many envs, stepped together.
        policy: Acts and values.
        frames_per_batch: Decisions per rollout over all envs; a multiple of `env.num_envs`.
        total_frames: Stop iterating after this many decisions; -1 never stops.
        device: Where rollouts live; the env's device.
        return_same_td: Yield one object, updated in place; otherwise every rollout stays valid.
        exploration_type: "random" samples actions, "deterministic" takes the mean.
        split_trajs: Yield [num_trajectories, max_length] with a "mask" instead of [T, N].
        postproc: Applied to every rollout before it is handed out.
    """

    def __init__(
        self,
        env: TensorEnv,
        policy: ActorCritic,
        frames_per_batch: int,
        total_frames: int = -1,
        device: str | torch.device | None = None,
        return_same_td: bool = True,
        exploration_type: ExplorationType = "random",
        split_trajs: bool = False,
        postproc: Callable[[TensorDict], TensorDict] | None = None,
    ) -> None:
        if frames_per_batch < 1 or frames_per_batch % env.num_envs:
            raise ConfigError(
                f"frames_per_batch is {frames_per_batch}, but must be a positive multiple of num_envs ({env.num_envs})."
            )
        if total_frames == 0 or total_frames < -1:
            raise ConfigError(f"total_frames is {total_frames}, but must be positive, or -1 for no end.")
        if device is not None and torch.device(device).type != env.device.type:
            raise ConfigError(f"device is {device}, but rollouts live where the env is: {env.device}.")
        if exploration_type not in ("random", "deterministic"):
            raise ConfigError(f"exploration_type is {exploration_type!r}, but must be 'random' or 'deterministic'.")
        self.env, self.policy = env, policy
        self.frames_per_batch, self.total_frames = frames_per_batch, total_frames
        self.return_same_td, self.split_trajs, self.postproc = return_same_td, split_trajs, postproc
        self.deterministic = exploration_type == "deterministic"
        self.steps = frames_per_batch // env.num_envs
        self._frames = 0
        self._fps = 0.0
        self.simulate_s = 0.0  # of the last rollout, spent in the env
        self._begun = False
        self._rollout = self._allocate()
        self._slots = self._make_slots()

    def _allocate(self) -> TensorDict:
        t, n, device = self.steps, self.env.num_envs, self.env.device
        one = self.env.make_buffers()
        self._final = one["final_obs"]
        self._spare = one["obs"]

        def repeat(x: Tensor) -> Tensor:
            return torch.zeros((t, *x.shape), dtype=x.dtype, device=device)

        rollout = {k: repeat(v) for k, v in one.items() if isinstance(v, Tensor)}
        rollout["obs"] = TensorDict({k: repeat(v) for k, v in one["obs"].items()}, [t, n])
        actions = self.env.action_spec.shape[0]
        for name, width in (("input", self.policy.inputs), ("raw", actions), ("action", actions)):
            rollout[name] = torch.zeros(t, n, width, device=device)
        for name in ("log_prob", "value", "next_value"):
            rollout[name] = torch.zeros(t, n, device=device)
        return TensorDict(rollout, [t, n])

    def _make_slots(self) -> list[tuple[dict[str, Tensor], TensorDict]]:
        """For every t: views of row t to act from and write to, and the buffers the env fills in step t."""
        rows, n = self._rollout, self.env.num_envs
        results = ("reward", "terminated", "truncated", "outcome", "episode_return", "episode_length")
        slots = []
        for t in range(self.steps):
            act = {k: rows[k][t] for k in ("input", "raw", "action", "log_prob", "value", "next_value", *results)}
            act |= {f"obs.{k}": v[t] for k, v in rows["obs"].items()}
            into = {k: v[t + 1] for k, v in rows["obs"].items()} if t + 1 < self.steps else dict(self._spare.items())
            out = TensorDict({"obs": into, "final_obs": self._final, **{k: rows[k][t] for k in results}}, [n])
            slots.append((act, out))
        return slots

    @torch.no_grad()
    def rollout(self) -> TensorDict:
        """Fly `frames_per_batch` decisions and return them, [T, N]."""
        begun = time.perf_counter()
        self.simulate_s = 0.0
        first, _ = self._slots[0]
        if not self._begun:
            self.env.reset(out=TensorDict({"obs": self._spare}, [self.env.num_envs]))
            self._begun = True
        for name, value in self._spare.items():
            first[f"obs.{name}"].copy_(value)
        head, norm = self.policy.head, self.policy.value_norm
        mean, std = norm.mean_std()
        previous: dict[str, Tensor] | None = None
        for row, out in self._slots:
            obs = {k[4:]: v for k, v in row.items() if k.startswith("obs.")}
            row["input"].copy_(self.policy.encode(obs))
            params, value = self.policy(row["input"])
            raw = head.mean(params) if self.deterministic else head.sample(params)
            row["raw"].copy_(raw)
            row["action"].copy_(head.to_env(raw))
            row["log_prob"].copy_(head.log_prob(params, raw))
            row["value"].copy_(value * std + mean)
            if previous is not None:
                self._fill_next_value(previous, row["value"])
            stepping = time.perf_counter()
            self.env.step(row["action"], out=out)
            self.simulate_s += time.perf_counter() - stepping
            self._note_truncations(row)
            previous = row
        assert previous is not None
        self._fill_next_value(previous, self.policy.value(self.policy.encode(self._spare)))
        self._frames += self.frames_per_batch
        self._fps = self.frames_per_batch / (time.perf_counter() - begun)
        return self._rollout

    def _note_truncations(self, row: dict[str, Tensor]) -> None:
        """Put V(final_obs) into next_value where the clock ended an episode."""
        truncated = row["truncated"]
        if self.env.device.type == "cpu":
            index = truncated.nonzero().flatten()
            if len(index):
                final = {k: v[index] for k, v in self._final.items()}
                row["next_value"][index] = self.policy.value(self.policy.encode(final))
        else:  # looking would wait for the device; valuing all rows does not
            row["next_value"].copy_(self.policy.value(self.policy.encode(self._final)))

    @staticmethod
    def _fill_next_value(row: dict[str, Tensor], following: Tensor) -> None:
        torch.where(row["truncated"], row["next_value"], following, out=row["next_value"])

    @property
    def latest(self) -> TensorDict:
        """The rollout collected last, in place."""
        return self._rollout

    def __iter__(self) -> Iterator[TensorDict]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            data = self.rollout()
            if not self.return_same_td:
                data = data.clone()
            if self.split_trajs:
                data = split_trajectories(data)
            yield self.postproc(data) if self.postproc else data

    def state_dict(self) -> dict[str, object]:
        """What the next rollout depends on, besides policy and torch's random state."""
        return {
            "env": self.env.state_dict(),
            "obs": {k: v.clone() for k, v in self._spare.items()},
            "frames": self._frames,
            "begun": self._begun,
        }

    def load_state_dict(self, state: dict) -> None:
        self.env.load_state_dict(state["env"])
        for name, value in self._spare.items():
            value.copy_(state["obs"][name])
        self._frames, self._begun = int(state["frames"]), bool(state["begun"])

    def shutdown(self) -> None:
        """Release the env."""
        self.env.close()


def split_trajectories(data: TensorDict) -> TensorDict:
    """Return [trajectories, longest] with a bool "mask"; a row holds consecutive decisions of one episode."""
    done = data["terminated"] | data["truncated"]
    t, n = done.shape
    pieces: list[TensorDict] = []
    for env in range(n):
        ends = (done[:, env].nonzero().flatten() + 1).tolist()
        edges = [0, *ends] + ([t] if not ends or ends[-1] != t else [])
        pieces += [data[a:b, env] for a, b in itertools.pairwise(edges)]
    longest = max(len(p) for p in pieces)
    first = pieces[0]
    out = first.new_zeros(len(pieces), longest) if hasattr(first, "new_zeros") else None
    assert out is not None
    mask = torch.zeros(len(pieces), longest, dtype=torch.bool, device=done.device)
    for k, piece in enumerate(pieces):
        out[k, : len(piece)] = piece
        mask[k, : len(piece)] = True
    return out.set("mask", mask)
