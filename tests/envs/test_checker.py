"""The checker passes a sound env and names the fault of every broken one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import FledgeError, InputError
from fledge.core.random import uniform
from fledge.core.specs import TensorSpec
from fledge.envs.base import TensorEnv
from fledge.envs.checker import EnvCheckError, check_tensor_env
from fledge.tasks.navigation.config import ActionForm, Dynamics, NavigationConfig, RandomizeConfig
from fledge.tasks.navigation.env import NavigationEnv


class Walk(TensorEnv):
    """A sound env of a few lines: walkers on a line, out beyond ±1, cut off after `limit` steps."""

    outcomes = {0: "running", 1: "out", 2: "timeout"}
    limit = 9

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, "cpu", seed)
        self.state = {
            "pos": torch.zeros(num_envs),
            "step": torch.zeros(num_envs, dtype=torch.int32),
            "episode": torch.full((num_envs,), -1, dtype=torch.int64),
            "total": torch.zeros(num_envs),
        }

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return {"pos": TensorSpec((1,), torch.float32, -2.0, 2.0), "clock": TensorSpec((), torch.int32, 0, 1000)}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((1,), torch.float32, -1.0, 1.0)

    def begin(self, mask: Tensor) -> None:
        self.state["episode"] += mask
        counter = torch.zeros(self.num_envs, 4, dtype=torch.int64)
        counter[:, 0], counter[:, 1] = torch.arange(self.num_envs), self.state["episode"].clamp(min=0)
        start = torch.as_tensor(uniform(counter.numpy(), self.seed)[:, 0]) - 0.5
        self.state["pos"] = torch.where(mask, start, self.state["pos"])
        self.state["step"] = torch.where(mask, 0, self.state["step"]).int()
        self.state["total"] = torch.where(mask, 0.0, self.state["total"])

    def observe(self, into: TensorDict, rows: Tensor | None = None) -> None:
        rows = torch.ones(self.num_envs, dtype=torch.bool) if rows is None else rows
        into["pos"][rows] = self.state["pos"][rows, None]
        into["clock"][rows] = self.state["step"][rows]

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        mask = torch.ones(self.num_envs, dtype=torch.bool) if env_mask is None else env_mask
        if mask.shape != (self.num_envs,):
            raise InputError(f"The mask has shape {tuple(mask.shape)}.")
        out = self.make_buffers() if out is None else out
        self.begin(mask)
        self.observe(out["obs"])
        return out

    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        self.check_action(action)
        out = self.make_buffers() if out is None else out
        s = self.state
        s["pos"] = s["pos"] + 0.2 * action[:, 0].clamp(-1, 1)
        s["step"] = s["step"] + 1
        out["reward"].copy_(-s["pos"].abs())
        s["total"] = s["total"] + out["reward"]
        out["terminated"].copy_(s["pos"].abs() > 1)
        out["truncated"].copy_((s["step"] >= self.limit) & ~out["terminated"])
        out["outcome"].copy_(out["terminated"] + 2 * out["truncated"])
        out["episode_return"].copy_(s["total"])
        out["episode_length"].copy_(s["step"])
        ended = out["terminated"] | out["truncated"]
        self.observe(out["final_obs"], ended)
        self.begin(ended)
        self.observe(out["obs"])
        return out

    def state_dict(self) -> dict[str, Any]:
        return {k: v.clone() for k, v in self.state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = {k: v.clone() for k, v in state.items()}


class LongWalk(Walk):
    limit = 1000


class AliasesFresh(Walk):
    """Calls without `out` all get the same buffers."""

    def __init__(self, num_envs: int, seed: int) -> None:
        super().__init__(num_envs, seed)
        self.own = self.make_buffers()

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        return super().reset(env_mask, self.own if out is None else out)

    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        return super().step(action, dt, self.own if out is None else out)


class RewritesOld(Walk):
    """Goes on writing into buffers that were passed as `out` earlier."""

    given: TensorDict | None = None

    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        if self.given is not None:
            self.given["obs"].update_(result["obs"])
        self.given = out if out is not None else self.given
        return result


class ReturnsOthers(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        return super().step(action, dt, out).clone()


class SharesMemory(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        if out is None:
            result["final_obs"] = result["obs"]
        return result


class LeavesZeros(Walk):
    """Writes clocks into the caller's buffers only where they are not 0."""

    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt)
        if out is None:
            return result
        clock = torch.where(result["obs"]["clock"] == 0, out["obs"]["clock"], result["obs"]["clock"])
        out.update_(result)
        out["obs"]["clock"].copy_(clock)
        return out


class WritesAction(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        action.clamp_(-0.5, 0.5)
        return result


class IgnoresMask(Walk):
    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        return super().reset(None if env_mask is None else torch.ones_like(env_mask), out)


class MaskDoesNothing(Walk):
    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        return super().reset(None if env_mask is None else torch.zeros_like(env_mask), out)


class MaskLeaks(Walk):
    """A masked reset shows the others as they were, but sets their clocks back."""

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().reset(env_mask, out)
        if env_mask is not None and env_mask.any():
            self.state["step"] = torch.zeros_like(self.state["step"])
        return result


class NonDeterministic(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        return super().step(action + 1e-3 * torch.rand(action.shape), dt, out)


class IgnoresSeed(Walk):
    def begin(self, mask: Tensor) -> None:
        seed, self.seed = self.seed, 0
        super().begin(mask)
        self.seed = seed


class FinalIsFirst(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        result["final_obs"].update_(result["obs"])
        return result


class FinalIsPrevious(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        previous = self.make_buffers()["obs"]
        self.observe(previous)
        result = super().step(action, dt, out)
        result["final_obs"].update_(previous)
        return result


class FinalIsOff(Walk):
    """Final observations are nearly right: only an env that goes on can tell."""

    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        result["final_obs"]["pos"].mul_(1 + 1e-6)
        return result


class BothFlags(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        result["terminated"] |= result["truncated"]
        return result


class NeverTruncates(Walk):
    limit = 1000


class UnevenClock(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        self.limit = 7 + int(self.state["episode"][0]) % 2
        return super().step(action, dt, out)


class MiscountsLength(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        result["episode_length"] += 1
        return result


class MiscountsReturn(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        result["episode_return"] -= result["reward"]
        return result


class NamelessOutcome(Walk):
    outcomes = {0: "running", 2: "timeout"}


class OutOfSpec(Walk):
    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return super().observation_spec | {"pos": TensorSpec((1,), torch.float32, -0.1, 0.1)}


class WrongType(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        if out is None:
            result["reward"] = result["reward"].double()
        return result


class NanReward(Walk):
    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = super().step(action, dt, out)
        result["reward"][0] = float("nan")
        return result


class ForgetsState(Walk):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**state, "step": self.state["step"]})


class LiveState(Walk):
    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def begin(self, mask: Tensor) -> None:
        pos = self.state["pos"]
        super().begin(mask)
        self.state["pos"] = pos.copy_(self.state["pos"])


class AcceptsNan(Walk):
    def check_action(self, action: Tensor) -> None:
        super().check_action(torch.nan_to_num(action) if action.is_floating_point() else action)


class AcceptsShapes(Walk):
    def check_action(self, action: Tensor) -> None:
        super().check_action(action[: self.num_envs])

    def step(self, action: Tensor, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        self.check_action(action)
        return super().step(action[: self.num_envs], dt, out)


class CrashesOnShapes(Walk):
    def check_action(self, action: Tensor) -> None:
        assert action.shape == (self.num_envs, 1)


class MovesBeforeRefusing(Walk):
    def check_action(self, action: Tensor) -> None:
        self.state["pos"] = self.state["pos"] + 0.01
        super().check_action(action)


FAULTS: list[tuple[type[Walk], str]] = [
    (AliasesFresh, "changed by a later call"),
    (RewritesOld, "changed by a later call"),
    (ReturnsOthers, "did not return the buffers"),
    (SharesMemory, "share their memory"),
    (LeavesZeros, "depends on the previous content of the buffers"),
    (WritesAction, "wrote into the action"),
    (IgnoresMask, "mask that is false everywhere changed"),
    (MaskDoesNothing, "did not begin new episodes inside the mask"),
    (MaskLeaks, "outside the mask"),
    (NonDeterministic, "differ"),
    (IgnoresSeed, "the seed has no effect"),
    (FinalIsFirst, "first observation of the next episode"),
    (FinalIsPrevious, "observation before the last step"),
    (BothFlags, "both true"),
    (NeverTruncates, "No episode was truncated"),
    (UnevenClock, "must truncate all episodes at the same length"),
    (MiscountsLength, "episode_length"),
    (MiscountsReturn, "episode_return"),
    (NamelessOutcome, "does not name"),
    (OutOfSpec, "outside its spec"),
    (WrongType, "its spec says"),
    (NanReward, "reward at step 1 is not finite"),
    (ForgetsState, "state"),
    (LiveState, "must be copies"),
    (AcceptsNan, "an action that is NaN was accepted"),
    (AcceptsShapes, "one env too many was accepted"),
    (CrashesOnShapes, "must raise InputError"),
    (MovesBeforeRefusing, "refused changed the state"),
]


def test_a_sound_env_passes_and_both_kinds_of_end_were_met() -> None:
    summary = check_tensor_env(Walk, steps=48, make_longer=LongWalk)
    assert summary.steps == 48
    assert summary.terminated > 0
    assert summary.truncated > 0


@pytest.mark.parametrize(("broken", "sentence"), FAULTS, ids=[b.__name__ for b, _ in FAULTS])
def test_a_broken_env_is_caught_and_its_fault_is_named(broken: type[Walk], sentence: str) -> None:
    with pytest.raises(EnvCheckError, match=sentence):
        check_tensor_env(broken, steps=24, num_envs=4)


def test_a_final_observation_that_is_slightly_off_is_caught_by_an_env_that_goes_on() -> None:
    check_tensor_env(FinalIsOff, steps=24)
    with pytest.raises(EnvCheckError, match=r"final_obs\.pos"):
        check_tensor_env(FinalIsOff, steps=24, make_longer=LongWalk)


def test_a_make_longer_that_is_no_longer_is_named() -> None:
    with pytest.raises(EnvCheckError, match="longer limit"):
        check_tensor_env(Walk, steps=24, make_longer=Walk)


def test_a_make_env_that_ignores_what_it_is_asked_for_is_named() -> None:
    with pytest.raises(EnvCheckError, match="num_envs=3"):
        check_tensor_env(lambda num_envs, seed: Walk(3, seed), steps=48)
    with pytest.raises(EnvCheckError, match="seed=5"):
        check_tensor_env(lambda num_envs, seed: Walk(num_envs, 5), steps=48)


def test_check_errors_are_fledge_errors_and_too_small_a_check_is_refused() -> None:
    assert issubclass(EnvCheckError, FledgeError)
    with pytest.raises(InputError, match="at least 2 envs and 4 steps"):
        check_tensor_env(Walk, num_envs=1)


def navigation(**options: Any) -> Callable[..., NavigationEnv]:
    def make(num_envs: int, seed: int) -> NavigationEnv:
        small: dict[str, Any] = {"num_maps": 2, "max_episode_steps": 20, "static_obstacles": 60, "moving_obstacles": 16}
        return NavigationEnv(NavigationConfig(num_envs=num_envs, **(small | options)), seed=seed, num_threads=2)

    return make


NOISY = RandomizeConfig(0.2, 0.2, 0.2, latency_steps=3, lidar_noise_m=0.1, lidar_dropout=0.1, state_noise=0.1)
FAST: dict[str, Any] = {"dynamics": Dynamics.first_order, "speed_limit": 20.0, "min_height_m": 0.4}


@pytest.mark.parametrize(
    "options",
    [
        {},
        FAST,
        {"map_refresh_steps": 6},
        {"fresh_maps": True, "num_maps": 1},
        {"randomize": NOISY, "lidar_sees_movers": True},
        {"action_form": ActionForm.headings, "grid_map": True, "decimation": 4},
    ],
    ids=["plain", "fast", "refreshed maps", "fresh maps", "noisy", "headings"],
)
def test_navigation_keeps_the_contract(options: dict[str, Any]) -> None:
    # A refreshed bank has a slot per refresh in the longest episode, so its state does not fit an env with longer ones.
    longer = None if "map_refresh_steps" in options else navigation(**options, **{"max_episode_steps": 400})
    summary = check_tensor_env(navigation(**options), steps=48, make_longer=longer)
    assert summary.truncated > 0
    assert summary.terminated > 0 or options is not FAST
