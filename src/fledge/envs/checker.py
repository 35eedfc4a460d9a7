"""A checker for any TensorEnv: flies it, and names the first promise of the contract (`envs/base.py`) that it breaks.

    check_tensor_env(lambda num_envs, seed: NavigationEnv(NavigationConfig(num_envs=num_envs), seed=seed))

Comparisons are bit for bit. Give it a short time limit, so that episodes end within the steps it flies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import FledgeError, InputError
from fledge.envs.base import TensorEnv

HOLD = 0.15  # share of the envs that draw a new action at each step; held actions lead somewhere, and so to ends
MakeEnv = Callable[..., TensorEnv]
TWINS = 3  # steps with ends that are repeated in another env


class EnvCheckError(FledgeError):
    """An env that breaks the TensorEnv contract."""


@dataclass(frozen=True)
class CheckSummary:
    """What the checker met on the way: how many episodes ended, and how."""

    steps: int
    terminated: int
    truncated: int


def check_tensor_env(
    make_env: MakeEnv,
    steps: int = 64,
    *,
    num_envs: int = 8,
    seed: int = 0,
    make_longer: MakeEnv | None = None,
) -> CheckSummary:
    """Return what was met, or raise EnvCheckError with one sentence about the first broken promise.

    Args:
        make_env: Called as `make_env(num_envs=..., seed=...)`, several times; each env is closed again.
        steps: Decisions to fly; more than the time limit of the envs made, or no truncation is seen.
        num_envs: At least 2.
        make_longer: Like make_env, with a longer time limit (both in whole decisions): there, truncated episodes go on,
            and what it observes must be what `final_obs` holds. Without it, final_obs is only told from the
            observations before and after.
    """
    if num_envs < 2 or steps < 4:
        raise InputError(f"The checker got {num_envs} envs and {steps} steps, but needs at least 2 and 4.")
    check = _Check(make_env, steps, num_envs, seed, make_longer)
    with check.env() as env:
        check.specs(env)
        check.actions = list(_draw_actions(env, steps))
    summary = check.flight()
    check.determinism()
    check.ends()
    check.saved_state()
    check.masked_reset()
    check.refusals()
    return summary


def _fail(sentence: str) -> None:
    raise EnvCheckError(sentence)


@dataclass
class _Check:
    """One check a method; all fly the same actions."""

    make_env: MakeEnv
    steps: int
    num_envs: int
    seed: int
    make_longer: MakeEnv | None
    actions: list[Tensor] = field(default_factory=list)
    ended: list[tuple[int, dict[str, Any], TensorDict]] = field(default_factory=list)  # step, state before it, result

    @contextmanager
    def env(self, seed: int | None = None, make: MakeEnv | None = None) -> Iterator[TensorEnv]:
        env = (make or self.make_env)(num_envs=self.num_envs, seed=self.seed if seed is None else seed)
        try:
            yield env
        finally:
            env.close()

    def fly(self, env: TensorEnv, first: int, reset: bool = False) -> list[TensorDict]:
        """Results of the actions from number `first` on, each a copy; with the reset's before them on request."""
        results = [env.reset().clone()] if reset else []
        return results + [env.step(action).clone() for action in self.actions[first:]]

    def specs(self, env: TensorEnv) -> None:
        if env.num_envs != self.num_envs:
            _fail(f"make_env was asked for {self.num_envs} envs, but the env says num_envs = {env.num_envs}.")
        if env.seed != self.seed:
            _fail(f"make_env was asked for seed {self.seed}, but the env says seed = {env.seed}.")
        if not env.observation_spec:
            _fail("observation_spec is empty, but an env must observe something.")

    def flight(self) -> CheckSummary:
        """Fly once with all kinds of buffers, and look at every result."""
        kept: list[tuple[int, TensorDict, TensorDict]] = []
        log = _Log(self.num_envs)
        with self.env() as env:
            last = self._call(env, 0, kept, None)
            _check_values(env, last["obs"], "obs", 0)
            for t, action in enumerate(self.actions, 1):
                before, given = env.state_dict(), action.clone()
                copied = copy.deepcopy(before)
                result = self._call(env, t, kept, action)
                if not _same(action, given):
                    _fail(f"step {t} wrote into the action, which belongs to the caller.")
                if not _same(before, copied):
                    _fail(f"step {t} changed a dict that state_dict had returned: its tensors must be copies.")
                _check_values(env, result["obs"], "obs", t)
                ended = log.add(env, result, last, t)
                if ended.any():
                    _check_values(env, result["final_obs"][ended], "final_obs", t)
                    self.ended.append((t, before, result))
                last = result
            for t, buffers, snapshot in kept:
                name = _difference_in(buffers, snapshot)
                if name:
                    _fail(f"{name} of call {t} was written again by a later call that was given other buffers.")
            return log.close(self.steps)

    def _call(
        self, env: TensorEnv, t: int, kept: list[tuple[int, TensorDict, TensorDict]], action: Tensor | None
    ) -> TensorDict:
        """Reset (no action) or step, into the caller's buffers at even t, which start full of rubbish."""
        out = _rubbish(env.make_buffers()) if t % 2 == 0 else None
        given = dict(_leaves(out)) if out is not None else {}
        result = env.reset(out=out) if action is None else env.step(action, out=out)
        if out is not None:
            returned = dict(_leaves(result))
            moved = [k for k, v in given.items() if k not in returned or returned[k].data_ptr() != v.data_ptr()]
            if result is not out or moved:
                _fail(
                    f"call {t} was given buffers as out, but returned others ({', '.join(moved) or 'the container'})."
                )
        _check_layout(env, result, t, only_obs=action is None)
        kept.append((t, result, result.clone()))
        return result.clone()

    def determinism(self) -> None:
        with self.env() as env:
            first = self.fly(env, 0, reset=True)
        with self.env() as env:
            again = self.fly(env, 0, reset=True)
        for t, (a, b) in enumerate(zip(first, again, strict=True)):
            name = _difference(a, b, only_obs=t == 0)
            if name:
                _fail(f"Two envs of seed {self.seed} differ in {name} at step {t} under the same actions.")
        with self.env() as env:
            buffers = _rubbish(env.make_buffers())
            for t, result in enumerate(first):
                env.reset(out=buffers) if t == 0 else env.step(self.actions[t - 1], out=buffers)
                name = _difference(result, buffers, only_obs=t == 0)
                if name:
                    _fail(f"{name} at step {t} depends on what the buffers passed as out held before.")
        with self.env(seed=self.seed + 1) as env:
            other = self.fly(env, 0, reset=True)
        if all(_difference(a, b, only_obs=True) is None for a, b in zip(first, other, strict=True)):
            _fail(f"Seeds {self.seed} and {self.seed + 1} give the same observations: the seed decides nothing.")

    def ends(self) -> None:
        """Repeat some steps in which episodes ended, in an env like it and in one with a longer time limit."""
        for t, before, result in self.ended[:TWINS]:
            with self.env() as twin:
                twin.load_state_dict(before)
                name = _difference(result, twin.step(self.actions[t - 1]))
            if name:
                _fail(f"An env that loaded the state before step {t} differs in {name} after it.")
            cut = result["truncated"]
            if self.make_longer is None or not cut.any():
                continue
            with self.env(make=self.make_longer) as longer:
                longer.load_state_dict(before)
                there = longer.step(self.actions[t - 1])
            if there["truncated"][cut].any():
                _fail(
                    "make_longer makes envs that are truncated as early as those of make_env: give it a longer limit."
                )
            name = _difference_in(result["final_obs"][cut], there["obs"][cut])
            if name:
                _fail(f"final_obs.{name} at step {t} is not what the same env observes there when it is not truncated.")

    def saved_state(self) -> None:
        half = self.steps // 2
        with self.env() as env, self.env() as other:
            env.reset()
            for action in self.actions[:half]:
                env.step(action)
            state = env.state_dict()
            expected = self.fly(env, half)
            for who, target in (("Another env", other), ("The env itself", env)):
                target.load_state_dict(state)
                for t, (a, b) in enumerate(zip(expected, self.fly(target, half), strict=True), half + 1):
                    name = _difference(a, b)
                    if name:
                        _fail(f"{who}, continued from a state_dict, differs in {name} at step {t}.")

    def masked_reset(self) -> None:
        half = self.steps // 2
        mask = torch.arange(self.num_envs) % 2 == 0
        with self.env() as env, self.env() as other:
            last = env.reset()
            for action in self.actions[:half]:
                last = env.step(action)
            mask = mask.to(last["reward"].device)
            other.load_state_dict(env.state_dict())
            nobody = other.reset(torch.zeros_like(mask))
            if _difference_in(nobody["obs"], last["obs"]):
                _fail("reset with a mask that is false everywhere changed observations.")
            result = other.reset(mask)
            name = _difference_in(result["obs"][~mask], last["obs"][~mask])
            if name:
                _fail(f"reset with a mask changed {name} of envs outside the mask.")
            if _difference_in(result["obs"][mask], last["obs"][mask]) is None:
                _fail("reset with a mask left the envs inside the mask as they were.")
            for t, (a, b) in enumerate(zip(self.fly(env, half), self.fly(other, half), strict=True), half + 1):
                name = _difference(a[~mask], b[~mask])
                if name:
                    _fail(f"A masked reset before step {half + 1} changed {name} at step {t} outside the mask.")

    def refusals(self) -> None:
        with self.env() as env:
            env.reset()
            before = env.state_dict()
            for what, action in _bad_actions(env, self.actions[0]):
                _expect_refusal(f"an action {what}", partial(env.step, action))
            mask = torch.ones(self.num_envs + 1, dtype=torch.bool, device=env.device)
            _expect_refusal("a mask of the wrong length", partial(env.reset, mask))
            if not _same(before, env.state_dict()):
                _fail("A call that was refused changed the state of the env.")


class _Log:
    """Follows every episode on its own, and holds the env's account against it."""

    def __init__(self, num_envs: int) -> None:
        self.length = torch.zeros(num_envs, dtype=torch.int64)
        self.total = torch.zeros(num_envs, dtype=torch.float64)
        self.lengths: list[int] = []
        self.cut: list[int] = []
        self.like_next = self.like_last = True

    def add(self, env: TensorEnv, result: TensorDict, last: TensorDict, t: int) -> Tensor:
        """Check one step's bookkeeping and return where episodes ended."""
        flat = {k: result[k].cpu() for k in ("reward", "terminated", "truncated", "outcome")}
        if not torch.isfinite(flat["reward"]).all():
            _fail(f"reward at step {t} is not finite.")
        if (flat["terminated"] & flat["truncated"]).any():
            _fail(f"terminated and truncated are both true at step {t}: an end is one or the other.")
        ended = flat["terminated"] | flat["truncated"]
        if ((flat["outcome"] != 0) != ended).any():
            _fail(f"outcome at step {t} must be 0 exactly where no episode ended.")
        unnamed = set(flat["outcome"].tolist()) - set(env.outcomes) if env.outcomes else set()
        if unnamed:
            _fail(f"outcome at step {t} has values {sorted(unnamed)} that env.outcomes does not name.")
        self.length += 1
        self.total += flat["reward"].double()
        if ended.any():
            self._close_episodes(result, last, ended, flat["truncated"], t)
        return ended.to(result["reward"].device)

    def _close_episodes(self, result: TensorDict, last: TensorDict, ended: Tensor, cut: Tensor, t: int) -> None:
        if (result["episode_length"].cpu()[ended] != self.length[ended]).any():
            _fail(f"episode_length at step {t} is not the number of steps since the episode began.")
        gap = (result["episode_return"].cpu()[ended].double() - self.total[ended]).abs()
        if (gap > 1e-3 * (1.0 + self.total[ended].abs())).any():
            _fail(f"episode_return at step {t} is not the sum of the episode's rewards.")
        self.lengths += self.length[ended].tolist()
        self.cut += self.length[ended & cut].tolist()
        rows = ended.to(result["reward"].device)
        final = result["final_obs"][rows]
        self.like_next &= _difference_in(final, result["obs"][rows]) is None
        self.like_last &= _difference_in(final, last["obs"][rows]) is None
        self.length[ended] = 0
        self.total[ended] = 0.0

    def close(self, steps: int) -> CheckSummary:
        """Check what only the whole flight shows."""
        if not self.cut:
            _fail(f"No episode was truncated in {steps} steps: give make_env a shorter time limit, or fly more steps.")
        if len(set(self.cut)) > 1 or max(self.lengths) > self.cut[0]:
            _fail(
                f"Truncated episodes have {sorted(set(self.cut))} steps and the longest episode {max(self.lengths)}, "
                "but a clock cuts all at the same length."
            )
        if self.like_next:
            _fail("final_obs is always the first observation of the next episode, not the last of the one that ended.")
        if self.like_last:
            _fail("final_obs is always the observation before the last step, not the one after it.")
        return CheckSummary(steps, len(self.lengths) - len(self.cut), len(self.cut))


def _draw_actions(env: TensorEnv, steps: int) -> Iterator[Tensor]:
    """Legal random actions, held for some steps."""
    spec, n, generator = env.action_spec, env.num_envs, torch.Generator().manual_seed(7)
    shape, action = (n, *spec.shape), None
    for _ in range(steps):
        if spec.num_values is not None:
            fresh = torch.randint(spec.num_values, shape, generator=generator, dtype=spec.dtype)
        elif spec.bounded:
            fresh = spec.low + (spec.high - spec.low) * torch.rand(shape, generator=generator, dtype=spec.dtype)
        else:
            fresh = torch.randn(shape, generator=generator, dtype=spec.dtype).clamp(spec.low, spec.high)
        redraw = torch.rand(n, generator=generator) < HOLD
        action = fresh if action is None else torch.where(redraw.reshape(-1, *[1] * len(spec.shape)), fresh, action)
        yield action.to(env.device)


def _bad_actions(env: TensorEnv, good: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "for one env too many", torch.cat([good, good[:1]])
    yield "with an axis too many", good.unsqueeze(-1)
    if env.action_spec.num_values is not None:
        yield "of floating point where integers are due", good.float()
        if env.device.type == "cpu":
            yield "beyond the last value", torch.full_like(good, env.action_spec.num_values)
            yield "below 0", torch.full_like(good, -1)
    else:
        yield "of integers where floating point is due", torch.zeros_like(good, dtype=torch.int64)
        if env.device.type == "cpu":  # on CUDA the check would wait for the device, so the contract does not ask for it
            bad = good.clone()
            bad.reshape(-1)[-1] = float("nan")
            yield "that is NaN", bad


def _expect_refusal(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except InputError:
        return
    except Exception as error:
        raise EnvCheckError(f"{what} raised {type(error).__name__}, but must raise InputError ({error}).") from error
    _fail(f"{what} was accepted, but must raise InputError.")


def _check_layout(env: TensorEnv, result: TensorDict, t: int, only_obs: bool) -> None:
    """Compare entries, shapes and types with the specs, and see that no two entries share memory."""
    found = dict(_leaves(result))
    expected = {k: v for k, v in _leaves(env.make_buffers()) if not only_obs or k.startswith("obs.")}
    for name, like in expected.items():
        tensor = found.get(name)
        if tensor is None:
            _fail(f"call {t} returned no {name}.")
        elif tensor.shape != like.shape or tensor.dtype != like.dtype:
            got, want = f"{tensor.dtype} {tuple(tensor.shape)}", f"{like.dtype} {tuple(like.shape)}"
            _fail(f"{name} of call {t} is {got}, but its spec says {want}.")
    where = [v.data_ptr() for v in found.values() if v.numel()]
    if len(set(where)) < len(where):
        _fail(f"Two entries of call {t} share their memory.")


def _check_values(env: TensorEnv, obs: TensorDict, root: str, t: int) -> None:
    for name, spec in env.observation_spec.items():
        low, high = (spec.low, spec.high) if spec.num_values is None else (0, spec.num_values - 1)
        value = obs[name]
        if value.is_floating_point() and not torch.isfinite(value).all():
            _fail(f"{root}.{name} at step {t} is not finite.")
        if value.numel() and (value.min() < low or value.max() > high):
            seen = f"[{value.min().item()}, {value.max().item()}]"
            _fail(f"{root}.{name} at step {t} lies in {seen}, outside its spec's [{low}, {high}].")


def _rubbish(buffers: TensorDict) -> TensorDict:
    for _, tensor in _leaves(buffers):
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
    return buffers


def _leaves(tensors: TensorDict) -> Iterator[tuple[str, Tensor]]:
    for path, tensor in tensors.items(include_nested=True, leaves_only=True):
        yield ".".join(path) if isinstance(path, tuple) else path, tensor


def _difference_in(a: TensorDict, b: TensorDict) -> str | None:
    """Name of the first entry whose bits differ."""
    other = dict(_leaves(b))
    return next((k for k, v in _leaves(a) if not _same(v, other[k])), None)


def _difference(a: TensorDict, b: TensorDict, only_obs: bool = False) -> str | None:
    """Name of the first entry that differs where it is valid."""
    name = _difference_in(a["obs"], b["obs"])
    if name or only_obs:
        return name and f"obs.{name}"
    name = _difference_in(*(x.select("reward", "terminated", "truncated", "outcome") for x in (a, b)))
    if name:
        return name
    ended = a["terminated"] | a["truncated"]
    return _difference_in(*(x[ended].select("final_obs", "episode_return", "episode_length") for x in (a, b)))


def _same(a: Any, b: Any) -> bool:
    """Whether two tensors, or trees of tensors and plain values, are the same bit for bit."""
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return bool(torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b))))
    return bool(a == b)
