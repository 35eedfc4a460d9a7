"""TorchEnv: a world of four methods keeps the whole TensorEnv contract, and its random numbers are philox's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fledge.core import random
from fledge.core.errors import InputError
from fledge.core.random import Purpose
from fledge.core.specs import TensorSpec
from fledge.envs.base import TensorEnv
from fledge.envs.checker import check_tensor_env
from fledge.envs.torch_env import OBSERVING, TorchEnv, philox


@dataclass
class DriftConfig:
    num_envs: int = 8
    max_steps: int = 9


class Drift(TorchEnv):
    """A boat that wind pushes along a line, with a noisy compass: random numbers in all three methods."""

    outcomes = {0: "running", 1: "aground", 2: "far", 3: "near"}

    def __init__(self, cfg: DriftConfig, device: str = "cpu", seed: int = 0, env_offset: int = 0) -> None:
        super().__init__(cfg, device, seed, env_offset)
        self.max_steps = cfg.max_steps

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return {"place": TensorSpec((1,), torch.float32), "compass": TensorSpec((2, 3), torch.float32, -3.0, 3.0)}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((1,), torch.float32, -1.0, 1.0)

    def begin(self, mask: Tensor) -> None:
        self.put("place", mask, 2.0 * self.uniform(1) - 1.0)
        self.put("wind", mask, self.normal())

    def observe(self) -> dict[str, Tensor]:
        return {"place": self.state["place"], "compass": self.normal(2, 3).clamp(-3.0, 3.0)}

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        gust = 0.2 * self.normal()
        self.state["place"] = self.state["place"] + 0.5 * action + (0.05 * self.state["wind"] + gust)[:, None]
        away = self.state["place"][:, 0].abs()
        return -away, (away > 2.0).long()

    def timeout_outcome(self) -> Tensor:
        return torch.where(self.state["place"][:, 0].abs() < 0.5, 3, 2)


def make(num_envs: int = 8, seed: int = 0, max_steps: int = 9, **options: Any) -> Drift:
    return Drift(DriftConfig(num_envs, max_steps), seed=seed, **options)


def actions(t: int, n: int = 8) -> Tensor:
    return 2.0 * torch.rand((n, 1), generator=torch.Generator().manual_seed(t)) - 1.0


def test_a_world_of_four_methods_passes_the_checker() -> None:
    summary = check_tensor_env(make, make_longer=lambda **given: make(max_steps=30, **given))
    assert summary.terminated > 5
    assert summary.truncated > 5


def test_a_with_block_closes_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TensorEnv] = []
    monkeypatch.setattr(Drift, "close", lambda env: closed.append(env))
    with make() as env:
        env.reset()
        assert not closed
    assert closed == [env]


def test_philox_on_tensors_is_the_hosts_philox_bit_for_bit() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (500, 4))
    words[0], words[1] = 0, 2**32 - 1
    for seed in (0, 1, 2**63 - 1, 0xDEADBEEF12345678):
        ours = philox(*torch.from_numpy(words).unbind(1), seed)
        assert np.array_equal(ours.numpy(), random.philox(words, seed))


def test_uniform_numbers_are_those_of_their_counter() -> None:
    env = make(num_envs=3, seed=5, env_offset=40)
    env.reset()
    for step in range(1, 4):
        env.step(actions(step, 3))
    env._draw = 0
    numbers = env.uniform(2, 3)  # six: two blocks of four words
    purpose = int(Purpose.WORLD) + 256 * 3
    for i in range(3):
        counters = [(40 + i, int(env._episode[i]), purpose, block) for block in (0, 1)]
        assert np.array_equal(numbers[i].flatten().numpy(), random.uniform(counters, 5).flatten()[:6])


def test_numbers_are_new_in_every_call_step_and_episode_and_for_every_method() -> None:
    env = make(num_envs=2, max_steps=10**6)
    seen: list[Tensor] = []
    for episode in (0, 1, 4096, 2**31):  # far apart: nothing wraps around
        for length in (0, 1, 2, 1 << 20):
            env._episode[:], env._length[:] = episode, length
            for env._draw in (0, OBSERVING):
                seen += [env.uniform(4), env.uniform(4)]
    every = torch.stack(seen).flatten(0, 1)
    assert len(torch.unique(every, dim=0)) == len(every)


def test_normal_numbers_have_mean_0_and_deviation_1() -> None:
    env = make(num_envs=1000)
    env._episode[:] = 0
    numbers = env.normal(50)
    assert numbers.shape == (1000, 50)
    assert abs(float(numbers.mean())) < 0.02
    assert abs(float(numbers.std()) - 1.0) < 0.02
    assert torch.isfinite(numbers).all()


def test_a_population_does_not_depend_on_how_it_is_spread() -> None:
    whole, parts = make(num_envs=8), [make(num_envs=4), make(num_envs=4, env_offset=4)]
    results = [whole.reset(), *(part.reset() for part in parts)]
    for t in range(25):
        assert torch.equal(results[0]["obs"]["place"], torch.cat([r["obs"]["place"] for r in results[1:]]))
        assert torch.equal(results[0]["obs"]["compass"], torch.cat([r["obs"]["compass"] for r in results[1:]]))
        action = actions(t)
        results = [whole.step(action), *(p.step(a) for p, a in zip(parts, action.split(4), strict=True))]


def test_a_masked_reset_begins_episodes_there_and_nowhere_else() -> None:
    env, other = make(), make()
    before = env.reset()
    other.reset()
    mask = torch.arange(8) < 3
    after = env.reset(mask)
    assert not torch.equal(after["obs"]["place"][:3], before["obs"]["place"][:3])
    assert torch.equal(after["obs"]["compass"][3:], before["obs"]["compass"][3:])  # noise too
    for t in range(20):
        a, b = env.step(actions(t)), other.step(actions(t))
        for name in ("reward", "outcome"):
            assert torch.equal(a[name][3:], b[name][3:])


def test_the_clock_ends_with_the_outcome_that_the_world_says() -> None:
    env = make(num_envs=64)
    env.reset()
    seen = set()
    for t in range(40):
        out = env.step(0.1 * actions(t, 64))
        near = out["final_obs"]["place"][:, 0].abs() < 0.5
        cut = out["truncated"]
        assert torch.equal(out["outcome"][cut] == 3, near[cut])
        assert (out["outcome"][out["terminated"]] == 1).all()
        seen |= set(out["outcome"].tolist())
    assert {0, 2, 3} <= seen


def test_by_default_the_clock_ends_with_the_last_outcome() -> None:
    class Plain(Drift):
        timeout_outcome = TorchEnv.timeout_outcome

    env = Plain(DriftConfig(2, max_steps=1))
    env.reset()
    assert env.step(torch.zeros(2, 1))["outcome"].tolist() == [3, 3]


def test_a_state_is_complete_and_goes_on_bit_for_bit() -> None:
    env, other = make(), make()
    env.reset()
    for t in range(5):
        env.step(actions(t))
    other.load_state_dict(env.state_dict())
    for t in range(5, 30):
        a, b = env.step(actions(t)), other.step(actions(t))
        assert all(torch.equal(a[k], b[k]) for k in ("reward", "outcome", "episode_return", "episode_length"))
        assert torch.equal(a["obs"]["compass"], b["obs"]["compass"])


def test_a_state_from_before_the_first_reset_can_be_loaded() -> None:
    env = make()
    fresh = env.state_dict()
    first = env.reset()
    env.load_state_dict(fresh)
    with pytest.raises(InputError, match=r"step\(\) was called before reset\(\)"):
        env.step(actions(0))
    assert torch.equal(env.reset()["obs"]["place"], first["obs"]["place"])


def test_states_of_other_envs_are_refused() -> None:
    env = make()
    env.reset()
    state = env.state_dict()
    with pytest.raises(InputError, match="saved by an env with seed=0, but this env has seed=1"):
        make(seed=1).load_state_dict(state)
    with pytest.raises(InputError, match="env_offset=0, but this env has env_offset=8"):
        make(env_offset=8).load_state_dict(state)
    with pytest.raises(InputError, match="saved with num_envs=8, but this env has num_envs=2"):
        make(num_envs=2).load_state_dict(state)
    with pytest.raises(InputError, match="not a state of a Drift: it has no state, counters"):
        env.load_state_dict({"seed": 0, "env_offset": 0, "begun": True})


def test_misuse_gets_a_sentence() -> None:
    env = make()
    with pytest.raises(InputError, match=r"step\(\) was called before reset\(\)"):
        env.step(actions(0))
    with pytest.raises(InputError, match="first reset must begin an episode in every env"):
        env.reset(torch.arange(8) < 3)
    env.reset()
    with pytest.raises(InputError, match=r"dt is 0\.5, but a decision of this env always lasts 1\.0 s"):
        env.step(actions(0), dt=0.5)
    with pytest.raises(InputError, match=r"has shape \(7, 1\), but must have \(8, 1\)"):
        env.step(actions(0)[:7])
    with pytest.raises(InputError, match=r"out must have obs.place .*make_buffers"):
        env.step(actions(0), out=make(num_envs=4).make_buffers())


def test_a_world_that_returns_wrong_shapes_is_told_so() -> None:
    class Wide(Drift):
        def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
            reward, outcome = super().advance(action)
            return reward[:, None], outcome

    class Blind(Drift):
        def observe(self) -> dict[str, Tensor]:
            return {"place": self.state["place"][:, 0]}

    wide = Wide(DriftConfig())
    wide.reset()
    with pytest.raises(InputError, match=r"advance returned reward of shape \(8, 1\), but must return \(8,\)"):
        wide.step(actions(0))
    with pytest.raises(InputError, match=r"observe returned shape \(8,\) for place, .* says \(8, 1\)"):
        Blind(DriftConfig()).reset()
