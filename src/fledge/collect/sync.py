"""SyncDataCollector: collect rollouts into one preallocated TensorDict [T, N]; the env writes into it without a copy.

`collect.base` lists the keys of a rollout.

Several envs fill neighbouring columns of the rollout and take turns: the policy acts in env 0, env 0 steps, the policy
acts in env 1, env 1 steps, then row t + 1 follows. Actions are sampled in that order, from torch's global generator or from
the one passed to `draw_from`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.collect.base import Collector, Prepare
from fledge.collect.env_slice import EnvSlice, Slot, fill_next_value
from fledge.collect.exploration import ExplorationType, RngScope, is_deterministic, read_exploration_type
from fledge.collect.key_names import KEY_NAMES, add_navrl_names, fill_done
from fledge.core.cuda_graphs import CudaGraphs, Function, addresses
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv, add_logs, make_action_buffer, write_action


class SyncDataCollector(Collector):
    """Collect rollouts of a policy in an env, one after the other.

    Args:
        env: A batched env, or a sequence of batched envs with the same specs.
        policy: Actor and critic.
        frames_per_batch: Decisions per rollout over all envs; a multiple of `num_envs`, summed over a sequence of envs.
        total_frames: Stop iterating after this many decisions; -1 never stops.
        device: Device of the rollouts; must be the env's device.
        return_same_td: Yield one object, updated in place; otherwise yield a copy each time.
        exploration_type: "random" samples actions, "deterministic" takes the mean; or an `ExplorationType`.
        split_trajs: Yield [num_trajectories, max_length] with a "mask" instead of [T, N].
        postproc: Function applied to every rollout before it is yielded.
        keys: "navrl" adds the key names of NavRL and TorchRL to rollouts (see `collect.key_names`).
    """

    def __init__(
        self,
        env: TensorEnv | Sequence[TensorEnv],
        policy: ActorCritic,
        frames_per_batch: int,
        total_frames: int = -1,
        device: str | torch.device | None = None,
        return_same_td: bool = True,
        exploration_type: ExplorationType | str = "random",
        split_trajs: bool = False,
        postproc: Callable[[TensorDict], TensorDict] | None = None,
        keys: str = "fledge",
    ) -> None:
        several = isinstance(env, Sequence) and all(isinstance(e, TensorEnv) for e in env)
        if not isinstance(env, TensorEnv) and not several:
            raise ConfigError(f"env is a {type(env).__name__}, but must be a TensorEnv, or a sequence of them.")
        if not isinstance(policy, ActorCritic):
            raise ConfigError(f"policy is a {type(policy).__name__}, but must be an ActorCritic (fledge.agents).")
        self.envs: tuple[TensorEnv, ...] = (env,) if isinstance(env, TensorEnv) else tuple(env)
        self._check_envs()
        self.env, self.policy = self.envs[0], policy
        self.num_envs = sum(e.num_envs for e in self.envs)
        if frames_per_batch < 1 or frames_per_batch % self.num_envs:
            raise ConfigError(
                f"frames_per_batch is {frames_per_batch}, but must be a positive multiple of num_envs ({self.num_envs})."
            )
        if total_frames == 0 or total_frames < -1:
            raise ConfigError(f"total_frames is {total_frames}, but must be positive, or -1 for no limit.")
        if device is not None and torch.device(device).type != self.env.device.type:
            raise ConfigError(f"device is {device}, but must be the env's device: {self.env.device}.")
        if keys not in KEY_NAMES:
            raise ConfigError(f"keys is {keys!r}, but must be one of {', '.join(KEY_NAMES)}.")
        self.frames_per_batch, self.total_frames = frames_per_batch, total_frames
        self.return_same_td, self.split_trajs, self.postproc = return_same_td, split_trajs, postproc
        self.deterministic = read_exploration_type(exploration_type) is ExplorationType.MEAN
        self.keys = keys
        self.steps = frames_per_batch // self.num_envs
        self.generator: torch.Generator | None = None
        self._rng_scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        edges = itertools.accumulate((e.num_envs for e in self.envs), initial=0)
        self._env_slices = [EnvSlice(e, first, policy.hidden_size) for e, first in zip(self.envs, edges, strict=False)]
        self._current = 0
        self._rollouts = [self._allocate()]
        device = self.env.device
        self._scale = torch.zeros(1, device=device), torch.ones(1, device=device)  # mean and deviation of values
        self._graphs, self._decisions = CudaGraphs(device, allowed=policy.captures), dict[Any, Function]()
        self._captured_with: Any = None  # where the policy's tensors were

    def _check_envs(self) -> None:
        if not self.envs:
            raise ConfigError("env is an empty sequence, but must have at least one env.")
        first = self.envs[0]
        for other in self.envs[1:]:
            specs = (other.observation_spec, other.action_spec, other.device)
            if other is first or specs != (first.observation_spec, first.action_spec, first.device):
                raise ConfigError(
                    "env has two envs that are one object, or that differ in specs or device: pass separate "
                    "envs with the same specs and device."
                )

    def _allocate(self) -> tuple[TensorDict, list[list[Slot]]]:
        """Return a zeroed rollout, and views of its rows for each env (`slots[env][time]`)."""
        t, n, device = self.steps, self.num_envs, self.env.device

        def zeros(x: Tensor) -> Tensor:
            return torch.zeros((t, n, *x.shape[1:]), dtype=x.dtype, device=device)

        one = self.env.make_buffers()
        rollout = {k: zeros(v) for k, v in one.items() if isinstance(v, Tensor)}
        rollout["obs"] = TensorDict({k: zeros(v) for k, v in one["obs"].items()}, [t, n])
        rollout["action"] = make_action_buffer(self.env.action_spec, (t, n), device)
        widths = {"input": self.policy.inputs, "raw_action": self.policy.head.width, "hidden": self.policy.hidden_size}
        for name, width in widths.items():
            if width or name != "hidden":
                rollout[name] = torch.zeros(t, n, width, device=device)
        for name in ("log_prob", "value", "next_value"):
            rollout[name] = torch.zeros(t, n, device=device)
        data = TensorDict(rollout, [t, n])
        slots = [env_slice.slots(data) for env_slice in self._env_slices]
        if self.keys == "navrl":
            add_navrl_names(data)
        return data, slots

    def keep(self, count: int) -> None:
        """Cycle through `count` rollout buffers: a rollout stays valid until `count - 1` more have been collected."""
        while len(self._rollouts) < count:
            self._rollouts.append(self._allocate())

    def draw_from(self, generator: torch.Generator) -> None:
        """Sample actions from `generator` instead of torch's global one; its state becomes part of `state_dict`."""
        self.generator, self._rng_scope = generator, RngScope(generator)
        self._graphs, self._decisions = CudaGraphs(self.env.device, [generator], self.policy.captures), {}

    @torch.no_grad()
    def rollout(self, prepare: Prepare | None = None) -> TensorDict:
        """Collect `frames_per_batch` decisions and return them, [T, N]."""
        begun = time.perf_counter()
        if prepare is not None:
            prepare()
        self._current = (self._current + 1) % len(self._rollouts)
        data, slots = self._rollouts[self._current]
        self._collect(slots)
        if self.keys == "navrl":
            fill_done(data)
        self.simulate_s = sum(env_slice.simulate_s for env_slice in self._env_slices)
        self.env_log = add_logs(env.take_log() for env in self.envs)
        self._frames += self.frames_per_batch
        self._fps = self.frames_per_batch / (time.perf_counter() - begun)
        self._latest = data
        return data

    def _collect(self, slots: list[list[Slot]]) -> None:
        env_slices = list(zip(self._env_slices, slots, strict=True))
        for env_slice, rows in env_slices:
            env_slice.simulate_s = 0.0
            env_slice.begin(rows[0])
        for place, value in zip(self._scale, self.policy.value_norm.mean_std(), strict=True):
            place.copy_(value)
        self._check_graphs()
        mean = is_deterministic(self.deterministic)
        for t in range(self.steps + 1):
            for env_slice, rows in env_slices:
                if t:
                    self._wait_for(env_slice)
                if self._graphs.enabled:
                    self._captured(env_slice, rows, t, mean)()
                else:
                    self._decide(env_slice, rows, t, mean)
                if t < self.steps:
                    self._begin_step(env_slice, rows[t])

    def _check_graphs(self) -> None:
        """Drop the graphs of decisions if the policy has moved in memory."""
        if self._graphs.enabled:
            found = addresses([*self.policy.parameters(), *self.policy.buffers()]), self.policy.training
            if found != self._captured_with:
                self._decisions, self._captured_with = {}, found

    def _captured(self, env_slice: EnvSlice, rows: list[Slot], t: int, mean: bool) -> Function:
        key = self._current, env_slice.columns.start, t, mean
        if key not in self._decisions:
            self._decisions[key] = self._graphs.captured(partial(self._decide, env_slice, rows, t, mean))
        return self._decisions[key]

    def _decide(self, env_slice: EnvSlice, rows: list[Slot], t: int, mean: bool) -> None:
        """Finish row t - 1 after its step, and write the policy's entries of row t; both only if the rollout has them.

        Args:
            mean: Take the mean action instead of a sample.
        """
        if t:
            env_slice.value_truncations(rows[t - 1], self.policy, self._scale)
            env_slice.forget(rows[t - 1])
        if t < self.steps:
            self._act(env_slice, rows[t], mean)
            value = rows[t].row["value"]
        else:
            value = self.policy.step(self.policy.encode(env_slice.spare), env_slice.hidden)[1]
            value = value * self._scale[1] + self._scale[0]
        if t:
            fill_next_value(rows[t - 1], value)

    def _act(self, env_slice: EnvSlice, slot: Slot, mean: bool) -> None:
        """Compute the policy's entries of a row."""
        row, head = slot.row, self.policy.head
        row["input"].copy_(self.policy.encode(slot.obs))
        params, value, hidden = self.policy.step(row["input"], env_slice.hidden)
        if hidden is not None and env_slice.hidden is not None:
            row["hidden"].copy_(env_slice.hidden)
            env_slice.hidden.copy_(hidden)
        if mean:
            raw_action = head.mean(params)
        else:
            with self._rng_scope:
                raw_action = head.sample(params)
        row["raw_action"].copy_(raw_action)
        write_action(row["action"], head.to_env(raw_action))
        row["log_prob"].copy_(head.log_prob(params, raw_action))
        torch.add(value * self._scale[1], self._scale[0], out=row["value"])

    def _begin_step(self, env_slice: EnvSlice, slot: Slot) -> None:
        env_slice.step(slot)

    def _wait_for(self, env_slice: EnvSlice) -> None:
        """Wait until the env's step has ended."""

    def __iter__(self) -> Iterator[TensorDict]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            yield self.finish(self.rollout())

    def finish(self, data: TensorDict) -> TensorDict:
        """Apply `return_same_td`, `split_trajs` and `postproc` to a rollout."""
        if not self.return_same_td:
            data = data.clone()
        if self.split_trajs:
            data = split_trajectories(data)
        return self.postproc(data) if self.postproc else data

    def state_dict(self) -> dict[str, Any]:
        """Return the state of envs and generator; the policy and torch's global random state are not included."""
        parts = [env_slice.state_dict() for env_slice in self._env_slices]
        state: dict[str, Any] = {"frames": self._frames, "begun": self._env_slices[0].begun}
        for name in parts[0]:
            state[name] = [part[name] for part in parts] if len(parts) > 1 else parts[0][name]
        return state if self.generator is None else {**state, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from a `state_dict` of a collector with the same number of envs."""
        names = [name for name in ("env", "obs", "hidden") if name in state]
        parts = {k: state[k] if isinstance(state[k], list) else [state[k]] for k in names}
        if len(parts["env"]) != len(self._env_slices):
            saved, own = len(parts["env"]), len(self._env_slices)
            raise ConfigError(
                f"The state needs a collector over {saved} envs, but this one has {own}: pass {saved} envs."
            )
        for k, env_slice in enumerate(self._env_slices):
            env_slice.load_state_dict({name: part[k] for name, part in parts.items()})
            env_slice.begun = bool(state["begun"])
        self._frames = int(state["frames"])
        if self.generator is not None and "generator" in state:
            self.generator.set_state(state["generator"].cpu())

    def shutdown(self) -> None:
        """Close the envs."""
        for env in self.envs:
            env.close()


def split_trajectories(data: TensorDict) -> TensorDict:
    """Split a rollout [T, N] into [num_trajectories, max_length] and a "mask"; each row holds steps of one episode."""
    done = data["terminated"] | data["truncated"]
    t, n = done.shape
    pieces: list[TensorDict] = []
    for env in range(n):
        ends = (done[:, env].nonzero().flatten() + 1).tolist()
        edges = [0, *ends] + ([t] if not ends or ends[-1] != t else [])
        pieces += [data[a:b, env] for a, b in itertools.pairwise(edges)]
    longest = max(len(p) for p in pieces)
    out: TensorDict = pieces[0].new_zeros(len(pieces), longest)
    mask = torch.zeros(len(pieces), longest, dtype=torch.bool, device=done.device)
    for k, piece in enumerate(pieces):
        out[k, : len(piece)] = piece
        mask[k, : len(piece)] = True
    return out.set("mask", mask)
