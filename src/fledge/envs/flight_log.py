"""Parts of the env checker: an independent log of every episode, layout checks, bitwise comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import FledgeError
from fledge.envs.base import TensorEnv


class EnvCheckError(FledgeError):
    """Error: an env breaks a rule of the TensorEnv contract (`envs/base.py`)."""


@dataclass(frozen=True)
class CheckSummary:
    """Numbers of steps, and of terminated and truncated episodes, in a check."""

    steps: int
    terminated: int
    truncated: int


def fail(sentence: str) -> None:
    raise EnvCheckError(sentence)


class FlightLog:
    """Sums up every episode's rewards and steps independently of the env, and compares the env's results with the sums."""

    def __init__(self, num_envs: int, one_clock: bool = True) -> None:
        self.one_clock = one_clock
        self.length, self.total = torch.zeros(num_envs, dtype=torch.int64), torch.zeros(num_envs, dtype=torch.float64)
        self.lengths: list[int] = []
        self.cut: list[int] = []
        self.like_next = self.like_last = True

    def add(self, env: TensorEnv, result: TensorDict, last: TensorDict, t: int) -> Tensor:
        """Check the result of step `t`, given the result before it (`last`); return a mask of the envs whose episode ended."""
        flat = {k: result[k].cpu() for k in ("reward", "terminated", "truncated", "outcome")}
        if not torch.isfinite(flat["reward"]).all():
            fail(f"reward at step {t} is not finite.")
        if (flat["terminated"] & flat["truncated"]).any():
            fail(f"terminated and truncated are both true at step {t}: an episode ends by one of them.")
        ended = flat["terminated"] | flat["truncated"]
        if ((flat["outcome"] != 0) != ended).any():
            fail(f"outcome at step {t} must be 0 exactly where no episode ended.")
        if unnamed := set(flat["outcome"].tolist()) - set(env.outcomes) if env.outcomes else set():
            fail(f"outcome at step {t} has values {sorted(unnamed)} that env.outcomes does not name.")
        self.length += 1
        self.total += flat["reward"].double()
        if ended.any():
            self._close_episodes(result, last, ended, flat["truncated"], t)
        return ended.to(result["reward"].device)

    def _close_episodes(self, result: TensorDict, last: TensorDict, ended: Tensor, cut: Tensor, t: int) -> None:
        if (result["episode_length"].cpu()[ended] != self.length[ended]).any():
            fail(f"episode_length at step {t} is not the number of steps since the episode began.")
        gap = (result["episode_return"].cpu()[ended].double() - self.total[ended]).abs()
        if (gap > 1e-3 * (1.0 + self.total[ended].abs())).any():
            fail(f"episode_return at step {t} is not the sum of the episode's rewards.")
        self.lengths += self.length[ended].tolist()
        self.cut += self.length[ended & cut].tolist()
        rows = ended.to(result["reward"].device)
        final = result["final_obs"][rows]
        self.like_next &= difference_in(final, result["obs"][rows]) is None
        self.like_last &= difference_in(final, last["obs"][rows]) is None
        self.length[ended] = 0
        self.total[ended] = 0.0

    def close(self, steps: int) -> CheckSummary:
        """Check the rules that concern the whole check, not single steps, and return the summary."""
        if not self.cut:
            fail(f"No episode was truncated in {steps} steps: give make_env a shorter time limit, or raise steps.")
        if self.one_clock and (len(set(self.cut)) > 1 or max(self.lengths) > self.cut[0]):
            fail(
                f"Truncated episodes have {sorted(set(self.cut))} steps and the longest episode {max(self.lengths)}, "
                "but a time limit must truncate all episodes at the same length."
            )
        if self.like_next:
            fail(
                "final_obs is always the first observation of the next episode, but must be the last of the ended episode."
            )
        if self.like_last:
            fail("final_obs is always the observation before the last step, but must be the one after it.")
        return CheckSummary(steps, len(self.lengths) - len(self.cut), len(self.cut))


def check_layout(env: TensorEnv, result: TensorDict, t: int, only_obs: bool) -> None:
    """Check entries, shapes and types against the specs, and that no two entries share memory."""
    found = dict(leaves(result))
    expected = {k: v for k, v in leaves(env.make_buffers()) if not only_obs or k.startswith("obs.")}
    for name, like in expected.items():
        tensor = found.get(name)
        if tensor is None:
            fail(f"call {t} returned no {name}.")
        elif tensor.shape != like.shape or tensor.dtype != like.dtype:
            got, want = f"{tensor.dtype} {tuple(tensor.shape)}", f"{like.dtype} {tuple(like.shape)}"
            fail(f"{name} of call {t} is {got}, but its spec says {want}.")
    where = [v.data_ptr() for v in found.values() if v.numel()]
    if len(set(where)) < len(where):
        fail(f"Two entries of call {t} share their memory.")


def check_values(env: TensorEnv, obs: TensorDict, root: str, t: int) -> None:
    for name, spec in env.observation_spec.items():
        low, high = (spec.low, spec.high) if spec.num_values is None else (0, spec.num_values - 1)
        value = obs[name]
        if value.is_floating_point() and not torch.isfinite(value).all():
            fail(f"{root}.{name} at step {t} is not finite.")
        if value.numel() and (value.min() < low or value.max() > high):
            seen = f"[{value.min().item()}, {value.max().item()}]"
            fail(f"{root}.{name} at step {t} lies in {seen}, outside its spec's [{low}, {high}].")


def leaves(tensors: TensorDict) -> Iterator[tuple[str, Tensor]]:
    for path, tensor in tensors.items(include_nested=True, leaves_only=True):
        yield ".".join(path) if isinstance(path, tuple) else path, tensor


def difference_in(a: TensorDict, b: TensorDict) -> str | None:
    """Return the name of the first entry whose bits differ, or None if all are equal."""
    other = dict(leaves(b))
    return next((k for k, v in leaves(a) if not same(v, other[k])), None)


def difference(a: TensorDict, b: TensorDict, only_obs: bool = False) -> str | None:
    """Return the name of the first entry that differs, compared only where it is valid; None if all are equal."""
    name = difference_in(a["obs"], b["obs"])
    if name or only_obs:
        return name and f"obs.{name}"
    if name := difference_in(*(x.select("reward", "terminated", "truncated", "outcome") for x in (a, b))):
        return name
    ended = a["terminated"] | a["truncated"]
    return difference_in(*(x[ended].select("final_obs", "episode_return", "episode_length") for x in (a, b)))


def same(a: Any, b: Any) -> bool:
    """Return whether two tensors, or trees of tensors and plain values, are equal bit for bit."""
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b))))
    return bool(a == b)
