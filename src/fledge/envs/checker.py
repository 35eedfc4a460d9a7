"""Checker for any TensorEnv: it steps the env and reports the first rule of `envs/base.py` that the env breaks.

    check_tensor_env(lambda num_envs, seed: NavigationEnv(NavigationConfig(num_envs=num_envs), seed=seed))

Comparisons are bit for bit. Use a short time limit, so that episodes end within the steps of the check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.specs import TensorSpec, parts_of
from fledge.envs.base import Action, TensorEnv
from fledge.envs.flight_log import (
    CheckSummary,
    EnvCheckError,
    FlightLog,
    check_layout,
    check_values,
    difference,
    difference_in,
    fail,
    leaves,
    same,
)

HOLD = 0.15  # probability of a new action per env and step; held actions end more episodes
MakeEnv = Callable[..., TensorEnv]
REPEATED = 3  # number of steps with ended episodes that are repeated in another env


def check_tensor_env(
    make_env: MakeEnv, steps: int = 64, *, num_envs: int = 8, seed: int = 0, make_longer: MakeEnv | None = None
) -> CheckSummary:
    """Return a summary of the check, or raise EnvCheckError with one sentence about the first broken rule.

    Args:
        make_env: Called as `make_env(num_envs=..., seed=...)`, several times; each env is closed again.
        steps: Decisions per check; must exceed the time limit of the env, so that episodes are truncated.
        num_envs: Number of envs, at least 2.
        make_longer: Like make_env, but with a longer time limit (both in whole decisions). There, episodes that make_env's
            limit truncates continue, and their observations must equal `final_obs`. Without make_longer, the check is
            only that `final_obs` differs from the observations before and after it.
    """
    if num_envs < 2 or steps < 4:
        raise InputError(
            f"The checker got num_envs={num_envs} and steps={steps}, but needs at least 2 envs and 4 steps."
        )
    check = _Check(make_env, steps, num_envs, seed, make_longer)
    with check.env() as env:
        check.specs(env)
        check.actions = list(draw_actions(env, steps))
    summary = check.flight()
    check.determinism()
    check.ends()
    check.saved_state()
    check.masked_reset()
    check.refusals()
    return summary


@dataclass
class _Check:
    """The checks of `check_tensor_env`, one method each; all use the same actions."""

    make_env: MakeEnv
    steps: int
    num_envs: int
    seed: int
    make_longer: MakeEnv | None
    actions: list[Action] = field(default_factory=list)
    ended: list[tuple[int, dict[str, Any], TensorDict]] = field(default_factory=list)  # step, state before it, result

    @contextmanager
    def env(self, seed: int | None = None, make: MakeEnv | None = None) -> Iterator[TensorEnv]:
        env = (make or self.make_env)(num_envs=self.num_envs, seed=self.seed if seed is None else seed)
        try:
            yield env
        finally:
            env.close()

    def fly(self, env: TensorEnv, first: int) -> list[TensorDict]:
        """Step the env with all actions from number `first` on; return copies of the results."""
        return [env.step(action).clone() for action in self.actions[first:]]

    def specs(self, env: TensorEnv) -> None:
        if env.num_envs != self.num_envs:
            fail(f"make_env(num_envs={self.num_envs}, ...) returned an env with num_envs={env.num_envs}.")
        if env.seed != self.seed:
            fail(f"make_env(seed={self.seed}, ...) returned an env with seed={env.seed}.")
        if not env.observation_spec:
            fail("observation_spec is empty, but needs at least one observation.")
        for spec in masked_specs(env):
            seen = env.observation_spec.get(spec.mask or "")
            if seen is None or seen.shape != (*spec.shape, spec.num_values):
                fail(f"The action's mask {spec.mask} must be an observation of shape {(*spec.shape, spec.num_values)}.")

    def flight(self) -> CheckSummary:
        """Step through all actions, alternately with and without `out` buffers, check every result, and return the summary."""
        kept: list[tuple[int, TensorDict, TensorDict]] = []
        with self.env() as env:
            log = FlightLog(self.num_envs, env.one_clock)
            last = self._call(env, 0, kept, None)
            check_values(env, last["obs"], "obs", 0)
            for t, action in enumerate(self.actions, 1):
                before, given = env.state_dict(), copy.deepcopy(action)
                copied = copy.deepcopy(before)
                result = self._call(env, t, kept, action)
                if not same(action, given):
                    fail(f"step {t} wrote into the action, which belongs to the caller.")
                if not same(before, copied):
                    fail(f"step {t} changed a dict that state_dict had returned: its tensors must be copies.")
                check_values(env, result["obs"], "obs", t)
                for spec in masked_specs(env):
                    if not (result["obs"][spec.mask] > 0).any(-1).all():
                        fail(f"obs.{spec.mask} at step {t} allows no value, but at least one action must be possible.")
                ended = log.add(env, result, last, t)
                if ended.any():
                    check_values(env, result["final_obs"][ended], "final_obs", t)
                    self.ended.append((t, before, result))
                last = result
            for t, buffers, snapshot in kept:
                if name := difference_in(buffers, snapshot):
                    fail(f"{name} of call {t} was changed by a later call that did not get these buffers.")
            return log.close(self.steps)

    def _call(
        self, env: TensorEnv, t: int, kept: list[tuple[int, TensorDict, TensorDict]], action: Action | None
    ) -> TensorDict:
        """Call `reset` if `action` is None, else `step`; check the layout of the result, and return a copy of it.

        At even `t`, pass `out` buffers full of invalid values, and check that the env returns them. Append t, the result and a
        copy of it to `kept`, so that changes by later calls can be found.
        """
        out = _invalid(env.make_buffers()) if t % 2 == 0 else None
        given = dict(leaves(out)) if out is not None else {}
        result = env.reset(out=out) if action is None else env.step(action, out=out)
        if out is not None:
            returned = dict(leaves(result))
            moved = [k for k, v in given.items() if k not in returned or returned[k].data_ptr() != v.data_ptr()]
            if result is not out or moved:
                fail(
                    f"call {t} did not return the buffers that were passed as out ({', '.join(moved) or 'the container'})."
                )
        check_layout(env, result, t, only_obs=action is None)
        kept.append((t, result, result.clone()))
        return result.clone()

    def determinism(self) -> None:
        flights = []
        for seed in (self.seed, self.seed, self.seed + 1):
            with self.env(seed=seed) as env:
                flights.append([env.reset().clone(), *self.fly(env, 0)])
        first, again, other = flights
        for t, (a, b) in enumerate(zip(first, again, strict=True)):
            if name := difference(a, b, only_obs=t == 0):
                fail(f"Two envs of seed {self.seed} differ in {name} at step {t} under the same actions.")
        with self.env() as env:
            buffers = _invalid(env.make_buffers())
            for t, result in enumerate(first):
                env.reset(out=buffers) if t == 0 else env.step(self.actions[t - 1], out=buffers)
                if name := difference(result, buffers, only_obs=t == 0):
                    fail(f"{name} at step {t} depends on the previous content of the buffers passed as out.")
        if all(difference(a, b, only_obs=True) is None for a, b in zip(first, other, strict=True)):
            fail(f"Seeds {self.seed} and {self.seed + 1} give the same observations: the seed has no effect.")

    def ends(self) -> None:
        """Repeat some steps in which episodes ended, and compare the results with those of the first time.

        Each step is repeated in a new env from make_env and, if an episode was truncated in it, in one from make_longer.
        """
        for t, before, result in self.ended[:REPEATED]:
            with self.env() as other:
                other.load_state_dict(before)
                if name := difference(result, other.step(self.actions[t - 1])):
                    fail(f"An env that loaded the state before step {t} gives a different {name} in that step.")
            cut = result["truncated"]
            if self.make_longer is None or not cut.any():
                continue
            with self.env(make=self.make_longer) as longer:
                longer.load_state_dict(before)
                there = longer.step(self.actions[t - 1])
            if there["truncated"][cut].any():
                fail(
                    "Envs of make_longer are truncated as early as those of make_env: give make_longer a longer limit."
                )
            if name := difference_in(result["final_obs"][cut], there["obs"][cut]):
                fail(
                    f"final_obs.{name} at step {t} differs from the observation of the same env without the time limit."
                )

    def saved_state(self) -> None:
        half = self.steps // 2
        with self.env() as env, self.env() as other:
            env.reset()
            for action in self.actions[:half]:
                env.step(action)
            state = env.state_dict()
            expected = self.fly(env, half)
            for name_of, target in (("Another env", other), ("The env itself", env)):
                target.load_state_dict(state)
                for t, (a, b) in enumerate(zip(expected, self.fly(target, half), strict=True), half + 1):
                    if name := difference(a, b):
                        fail(f"{name_of}, continued from a state_dict, differs in {name} at step {t}.")

    def masked_reset(self) -> None:
        half = self.steps // 2
        with self.env() as env, self.env() as other:
            mask = torch.arange(self.num_envs) // env.group % 2 == 0
            last = env.reset()
            for action in self.actions[:half]:
                last = env.step(action)
            mask = mask.to(last["reward"].device)
            other.load_state_dict(env.state_dict())
            unchanged = other.reset(torch.zeros_like(mask))
            if difference_in(unchanged["obs"], last["obs"]):
                fail("reset with a mask that is false everywhere changed observations.")
            result = other.reset(mask)
            if name := difference_in(result["obs"][~mask], last["obs"][~mask]):
                fail(f"reset with a mask changed {name} of envs outside the mask.")
            if difference_in(result["obs"][mask], last["obs"][mask]) is None:
                fail("reset with a mask did not begin new episodes inside the mask.")
            for t, (a, b) in enumerate(zip(self.fly(env, half), self.fly(other, half), strict=True), half + 1):
                if name := difference(a[~mask], b[~mask]):
                    fail(f"A masked reset before step {half + 1} changed {name} at step {t} outside the mask.")

    def refusals(self) -> None:
        with self.env() as env:
            env.reset()
            before = env.state_dict()
            for what, action in _bad_actions(env, self.actions[0]):
                _expect_refusal(f"an action {what}", partial(env.step, action))
            mask = torch.ones(self.num_envs + 1, dtype=torch.bool, device=env.device)
            _expect_refusal("a mask of the wrong length", partial(env.reset, mask))
            if not same(before, env.state_dict()):
                fail("A call that was refused changed the state of the env.")


def masked_specs(env: TensorEnv) -> list[TensorSpec]:
    """Return the specs of those parts of the action that have a mask."""
    return [spec for spec in parts_of(env.action_spec).values() if spec.mask is not None]


def draw_actions(env: TensorEnv, steps: int) -> Iterator[Action]:
    """Yield one random action per step; each env repeats its action for some steps.

    Masks are ignored: an env must accept actions that the mask forbids.
    """
    spec, n, generator = env.action_spec, env.num_envs, torch.Generator().manual_seed(7)
    parts = parts_of(spec)
    held: dict[str, Tensor] = {}
    for _ in range(steps):
        fresh = {name: _draw(part, n, generator) for name, part in parts.items()}
        redraw = torch.rand(n, generator=generator) < HOLD
        for name, value in fresh.items():
            keep = redraw.reshape(-1, *[1] * (value.dim() - 1))
            held[name] = torch.where(keep, value, held[name]) if name in held else value
        action = {name: value.to(env.device) for name, value in held.items()}
        yield action[""] if isinstance(spec, TensorSpec) else action


def _draw(spec: TensorSpec, n: int, generator: torch.Generator) -> Tensor:
    shape = (n, *spec.shape)
    if spec.num_values is not None:
        return torch.randint(spec.num_values, shape, generator=generator, dtype=spec.dtype)
    if spec.bounded:
        return spec.low + (spec.high - spec.low) * torch.rand(shape, generator=generator, dtype=spec.dtype)
    return torch.randn(shape, generator=generator, dtype=spec.dtype).clamp(spec.low, spec.high)


def _bad_actions(env: TensorEnv, good: Action) -> Iterator[tuple[str, Action]]:
    spec = env.action_spec
    if isinstance(spec, TensorSpec) or isinstance(good, Tensor):
        yield from _bad_tensors(env, spec, good)  # type: ignore[arg-type]
        return
    first = next(iter(spec))
    yield "without one of its entries", {k: v for k, v in good.items() if k != first}
    yield "that is a tensor instead of a dict", good[first]
    for name, part in spec.items():
        for what, bad in _bad_tensors(env, part, good[name]):
            yield f"with {name} {what}", {**good, name: bad}


def _bad_tensors(env: TensorEnv, spec: TensorSpec, good: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "for one env too many", torch.cat([good, good[:1]])
    yield "with an axis too many", good.unsqueeze(-1)
    if spec.num_values is not None:
        yield "of floating point instead of integers", good.float()
        if env.device.type == "cpu":
            yield "beyond the last value", torch.full_like(good, spec.num_values)
            yield "below 0", torch.full_like(good, -1)
    else:
        yield "of integers instead of floating point", torch.zeros_like(good, dtype=torch.int64)
        if env.device.type == "cpu":  # not required on CUDA, where the check would wait for the device
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
    fail(f"{what} was accepted, but must raise InputError.")


def _invalid(buffers: TensorDict) -> TensorDict:
    for _, tensor in leaves(buffers):
        tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
    return buffers
