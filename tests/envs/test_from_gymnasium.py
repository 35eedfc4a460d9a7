"""Any Gymnasium env as a TensorEnv: spaces of all kinds, the contract, and envs that are put back exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fledge.core.errors import ConfigError, InputError
from fledge.envs.adapters import from_gymnasium
from fledge.envs.adapters.from_gymnasium import FromGymnasium
from fledge.envs.adapters.gymnasium_state import can_be_put_back, put_back, take_out
from fledge.envs.checker import check_tensor_env

LIMIT = 7


class Toy(gymnasium.Env[Any, Any]):
    """Observes a Dict, takes one of several kinds of action, and keeps the last one; ends by chance, from its generator."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-10.0, 10.0, (2,), np.float64),
            "picture": spaces.Box(0, 255, (3, 2), np.uint8),
            "choice": spaces.Discrete(5),
            "late": spaces.Discrete(3, start=4),
            "switches": spaces.MultiBinary(3),
            "dials": spaces.MultiDiscrete([3, 4]),
        }
    )
    kinds: dict[str, spaces.Space[Any]] = {
        "dials": spaces.MultiDiscrete([3, 2, 4]),
        "even_dials": spaces.MultiDiscrete([3, 3]),
        "switches": spaces.MultiBinary(4),
        "late": spaces.Discrete(3, start=5),
        "unequal": spaces.Box(np.float32([-1.0, 0.0]), np.float32([3.0, 10.0])),
        "open": spaces.Box(-np.inf, np.inf, (2,)),
        "dict": spaces.Dict({"go": spaces.Discrete(2), "turn": spaces.Box(-2.0, 2.0, (1,))}),
        "text": spaces.Text(3),
    }

    def __init__(self, kind: str = "dials", hidden: bool = False) -> None:
        self.action_space = self.kinds[kind]
        self.hidden = object() if hidden else None
        self.last: Any = None
        self.place = np.zeros(2)
        self.memory = {"steps": 0} if hidden else None

    def _observe(self) -> dict[str, Any]:
        steps = self.memory["steps"] if self.memory else int(10 * self.place[0])
        return {
            "place": self.place.copy(),
            "picture": np.full((3, 2), 200, np.uint8),
            "choice": steps % 5,
            "late": 4 + steps % 3,
            "switches": np.int8([1, 0, 1]),
            "dials": np.array([2, 3]),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.random(2)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.last = action
        if self.memory is not None:
            self.memory["steps"] += 1
        self.place = np.clip(self.place + 0.1 * self.np_random.standard_normal(2), -10, 10)
        return self._observe(), float(self.place.sum()), bool(self.np_random.random() < 0.1), False, {}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("FledgeToy-v0", Toy, max_episode_steps=LIMIT, disable_env_checker=True)
    yield
    del gymnasium.registry["FledgeToy-v0"]


def toy(kind: str = "dials", num_envs: int = 3, seed: int = 0, **options: Any) -> FromGymnasium:
    return FromGymnasium("FledgeToy-v0", num_envs, seed=seed, options={"kind": kind, **options})


def taken(env: FromGymnasium) -> list[Any]:
    return [one.unwrapped.last for one in env.envs]  # type: ignore[attr-defined]


# ---- the contract ----------------------------------------------------------------------------------------------------


def test_cartpole_passes_the_checker() -> None:
    def make(num_envs: int, seed: int) -> FromGymnasium:
        return FromGymnasium("CartPole-v1", num_envs, seed=seed, options={"max_episode_steps": 12})

    summary = check_tensor_env(make, 60, num_envs=4)
    assert summary.truncated > 0
    assert summary.terminated > 0


def test_pendulum_passes_the_checker() -> None:
    def make(num_envs: int, seed: int) -> FromGymnasium:
        return FromGymnasium("Pendulum-v1", num_envs, seed=seed, options={"max_episode_steps": 9})

    env = make(2, 0)
    assert (env.action_spec.low, env.action_spec.high) == (-2.0, 2.0)  # type: ignore[union-attr]
    assert env.decision_s == pytest.approx(0.05)
    env.close()
    assert check_tensor_env(make, 40, num_envs=3).truncated > 0


@pytest.mark.parametrize("kind", ["dials", "even_dials", "switches", "late", "unequal", "open", "dict"])
def test_every_kind_of_action_passes_the_checker(kind: str) -> None:
    summary = check_tensor_env(lambda num_envs, seed: toy(kind, num_envs, seed), 60, num_envs=4)
    assert summary.truncated > 0
    assert summary.terminated > 0


def test_it_flies_what_gymnasium_flies() -> None:
    env = FromGymnasium("CartPole-v1", 1, seed=3)
    plain = gymnasium.make("CartPole-v1")
    out = env.reset()
    obs, _ = plain.reset(seed=from_gymnasium.derive_seed(3, 0) % 2**31)
    for t in range(100):
        assert np.array_equal(out["obs"]["obs"][0].numpy(), obs)
        out = env.step(torch.tensor([t % 2]))
        obs, reward, terminated, truncated, _ = plain.step(t % 2)
        assert (float(out["reward"]), bool(out["terminated"]), bool(out["truncated"])) == (
            reward,
            terminated,
            truncated,
        )
        if terminated or truncated:
            assert np.array_equal(out["final_obs"]["obs"][0].numpy(), obs)
            obs, _ = plain.reset()
    env.close()


def test_seeds_follow_the_place_in_the_population() -> None:
    whole, part = FromGymnasium("CartPole-v1", 4, seed=1), FromGymnasium("CartPole-v1", 2, seed=1, env_offset=2)
    assert torch.equal(whole.reset()["obs"]["obs"][2:], part.reset()["obs"]["obs"])
    whole.close()
    part.close()


# ---- spaces ----------------------------------------------------------------------------------------------------------


def test_observations_of_a_dict_keep_their_names_and_values() -> None:
    env = toy(num_envs=2)
    specs = env.observation_spec
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {
        "place": ((2,), torch.float32),
        "picture": ((3, 2), torch.uint8),
        "choice": ((), torch.int64),
        "late": ((), torch.float32),
        "switches": ((3,), torch.float32),
        "dials": ((2,), torch.float32),
    }
    assert specs["choice"].num_values == 5
    obs = env.reset()["obs"]
    assert (obs["picture"] == 200).all()
    assert obs["switches"].tolist() == [[1.0, 0.0, 1.0]] * 2
    assert obs["dials"].tolist() == [[2.0, 3.0]] * 2
    assert (obs["late"] >= 4).all()
    env.close()


def test_dials_of_unequal_sizes_are_a_choice_each() -> None:
    env = toy("dials")
    assert {name: spec.num_values for name, spec in env.action_spec.items()} == {  # type: ignore[union-attr]
        "choice_0": 3,
        "choice_1": 2,
        "choice_2": 4,
    }
    env.reset()
    env.step({f"choice_{k}": torch.tensor(row) for k, row in enumerate(([0, 1, 2], [1, 0, 1], [3, 2, 1]))})
    assert [action.tolist() for action in taken(env)] == [[0, 1, 3], [1, 0, 2], [2, 1, 1]]
    with pytest.raises(InputError, match="choice_1"):
        env.step({"choice_0": torch.zeros(3, dtype=torch.int64)})
    env.close()


def test_dials_of_one_size_and_switches_are_one_tensor() -> None:
    for kind, values, width in (("even_dials", 3, 2), ("switches", 2, 4)):
        env = toy(kind)
        spec: Any = env.action_spec
        assert (spec.shape, spec.num_values) == ((width,), values)
        env.reset()
        action = torch.arange(3 * width).view(3, width) % values
        env.step(action)
        assert np.array_equal(np.stack(taken(env)), action.numpy())
        env.close()


def test_a_choice_that_starts_elsewhere_is_moved_there() -> None:
    env = toy("late")
    env.reset()
    env.step(torch.tensor([0, 1, 2]))
    assert taken(env) == [5, 6, 7]
    env.close()


def test_unequal_bounds_are_scaled_from_minus_one_to_one() -> None:
    env = toy("unequal")
    spec: Any = env.action_spec
    assert (spec.low, spec.high, spec.shape) == (-1.0, 1.0, (2,))
    env.reset()
    env.step(torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5]]))
    assert np.stack(taken(env)).tolist() == [[-1.0, 0.0], [1.0, 5.0], [3.0, 7.5]]
    env.close()


def test_open_bounds_stay_open() -> None:
    env = toy("open")
    spec: Any = env.action_spec
    assert not spec.bounded
    env.reset()
    env.step(torch.full((3, 2), 1e6))
    assert (np.stack(taken(env)) == 1e6).all()
    env.close()


def test_a_dict_of_actions_arrives_by_name() -> None:
    env = toy("dict", num_envs=2)
    env.reset()
    env.step({"go": torch.tensor([1, 0]), "turn": torch.tensor([[0.5], [-2.0]])})
    assert [(a["go"], a["turn"].tolist()) for a in taken(env)] == [(1, [0.5]), (0, [-2.0])]
    env.close()


# ---- state -----------------------------------------------------------------------------------------------------------


# Acrobot's state is float32 after a reset and float64 after a step: its array has to be replaced
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1"])
def test_classic_envs_can_be_put_back(env_id: str) -> None:
    assert can_be_put_back(env_id, ())


def test_an_env_that_is_put_back_goes_on_bit_for_bit_through_ends_and_time_limits() -> None:
    one, other = (gymnasium.make("CartPole-v1", max_episode_steps=15) for _ in range(2))
    one.reset(seed=1)
    other.reset(seed=2)
    for t in range(8):
        one.step(t % 2)
    saved = take_out(one)
    one.step(0)  # what was taken out is a copy
    put_back(one, saved)
    put_back(other, saved)
    for t in range(60):
        a, b = one.step(t % 2), other.step(t % 2)
        assert np.array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]
        if a[2] or a[3]:
            assert np.array_equal(one.reset()[0], other.reset()[0])


def test_a_state_continues_in_another_env() -> None:
    env, other = (FromGymnasium("CartPole-v1", 3, seed=4) for _ in range(2))
    env.reset()
    for t in range(30):
        env.step(torch.tensor([t % 2, 1, 0]))
    other.load_state_dict(env.state_dict())
    for t in range(40):
        a, b = env.step(torch.tensor([t % 2, 1, 0])), other.step(torch.tensor([t % 2, 1, 0]))
        for name in ("reward", "outcome", "episode_return", "episode_length"):
            assert torch.equal(a[name], b[name])
        assert torch.equal(a["obs"]["obs"], b["obs"]["obs"])
    env.close()
    other.close()


def test_an_env_with_state_out_of_reach_says_so_and_is_not_continued() -> None:
    env = toy("late", hidden=True)
    assert not env.resumes_exactly
    env.reset()
    state = env.state_dict()
    assert "envs" not in state
    with pytest.raises(InputError, match="cannot restore a state"):
        env.load_state_dict(state)
    env.close()


# ---- misuse ----------------------------------------------------------------------------------------------------------


def test_misuse_gets_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"gym:NoSuchEnv-v0 cannot be made"):
        FromGymnasium("NoSuchEnv-v0", 1)
    with pytest.raises(ConfigError, match=r"gym:CartPole-v1 cannot be made: .*colour"):
        FromGymnasium("CartPole-v1", 1, options={"colour": "red"})
    with pytest.raises(ConfigError, match=r"takes an action of Text"):
        toy("text")
    env = FromGymnasium("CartPole-v1", 2)
    with pytest.raises(InputError, match=r"step\(\) was called before reset\(\)"):
        env.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InputError, match="first reset must begin an episode in every env"):
        env.reset(torch.tensor([True, False]))
    env.reset()
    with pytest.raises(InputError, match="action of env 1 is 2, but must be 0 to 1"):
        env.step(torch.tensor([0, 2]))
    with pytest.raises(InputError, match=r"out must have obs.obs"):
        env.step(torch.zeros(2, dtype=torch.int64), out=toy().make_buffers())
    with pytest.raises(InputError, match="saved by an env with seed=0, but this env has seed=1"):
        FromGymnasium("CartPole-v1", 2, seed=1).load_state_dict(env.state_dict())
    with pytest.raises(InputError, match="saved with num_envs=2, but this env has num_envs=3"):
        FromGymnasium("CartPole-v1", 3).load_state_dict(env.state_dict())
    env.close()
