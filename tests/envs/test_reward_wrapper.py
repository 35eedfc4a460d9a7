"""A reward of one's own: paid instead of the env's, summed up over episodes, remembered, and nothing else changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from fledge.core.errors import ConfigError, InputError
from fledge.envs.base import TensorEnv
from fledge.envs.checker import check_tensor_env
from fledge.envs.reward_wrapper import RewardWrapper, find_reward, reached
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from tests.reference.toy_worlds import GunneryConfig, GunneryEnv


def careful(env: TensorEnv, action: Any, out: TensorDict) -> torch.Tensor:
    return out["reward"] - 0.5 * action["aim"].abs().squeeze(-1)


class Streak:
    """Pays the number of steps flown in this episode."""

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}

    def reset(self, env: TensorEnv, mask: torch.Tensor) -> None:
        steps = self.state.get("steps", torch.zeros(env.num_envs))
        self.state["steps"] = steps.masked_fill(mask, 0.0)

    def __call__(self, env: TensorEnv, action: Any, out: TensorDict) -> torch.Tensor:
        self.state["steps"] = self.state["steps"] + 1.0
        return self.state["steps"]


@pytest.mark.parametrize("reward", [careful, Streak], ids=["function", "memory"])
def test_a_rewarded_env_keeps_the_contract(reward: Any) -> None:
    def make(num_envs: int, seed: int, steps: int = 6) -> TensorEnv:
        env = GunneryEnv(GunneryConfig(num_envs, steps), seed=seed)
        return RewardWrapper(env, reward() if isinstance(reward, type) else reward)

    met = check_tensor_env(make, 40, make_longer=lambda **given: make(steps=30, **given))
    assert met.terminated > 0
    assert met.truncated > 0


def test_a_rewarded_navigation_env_keeps_the_contract() -> None:
    def make(num_envs: int, seed: int) -> TensorEnv:
        cfg = NavigationConfig(
            num_envs=num_envs, num_maps=2, static_obstacles=50, moving_obstacles=8, decimation=5, max_episode_steps=60
        )
        return RewardWrapper(NavigationEnv(cfg, seed=seed), lambda env, action, out: reached(out)["state"][:, 5])

    check_tensor_env(make, 30)


def actions(env: TensorEnv, steps: int) -> list[dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    n = env.num_envs
    return [
        {"fire": torch.randint(2, (n,), generator=g), "aim": torch.rand(n, 1, generator=g) * 4 - 2}
        for _ in range(steps)
    ]


def test_only_reward_and_return_differ_from_the_env_below() -> None:
    plain, paid = GunneryEnv(GunneryConfig(16), seed=4), RewardWrapper(GunneryEnv(GunneryConfig(16), seed=4), careful)
    assert torch.equal(plain.reset()["obs"]["target"], paid.reset()["obs"]["target"])
    total = torch.zeros(16)
    ends = 0
    for action in actions(plain, 30):
        a, b = plain.step(action), paid.step(action)
        for name in ("terminated", "truncated", "outcome", "episode_length"):
            assert torch.equal(a[name], b[name])
        assert torch.equal(a["obs"]["target"], b["obs"]["target"])
        assert torch.equal(a["final_obs"]["target"], b["final_obs"]["target"])
        expected = a["reward"] - 0.5 * action["aim"].abs().squeeze(-1)
        assert torch.equal(b["reward"], expected)
        total += expected
        ended = a["terminated"] | a["truncated"]
        assert torch.allclose(b["episode_return"][ended], total[ended], atol=1e-5)
        total[ended] = 0.0
        ends += int(ended.sum())
    assert ends > 50


def test_what_a_step_led_to_is_there_where_the_next_episode_has_begun() -> None:
    env = GunneryEnv(GunneryConfig(16, steps=3), seed=4)
    env.reset()
    for action in actions(env, 3):
        out = env.step(action)
    ended = out["terminated"] | out["truncated"]
    assert ended.any()
    there = reached(out)
    assert torch.equal(there["target"][ended], out["final_obs"]["target"][ended])
    assert torch.equal(there["target"][~ended], out["obs"]["target"][~ended])


def test_buffers_without_episode_figures_do() -> None:
    env = RewardWrapper(GunneryEnv(GunneryConfig(4), seed=0), Streak())
    env.reset()
    full = env.make_buffers()
    few = TensorDict({name: full[name] for name in ("obs", "reward", "terminated", "truncated")}, [4])
    assert env.step(actions(env, 1)[0], out=few) is few
    assert few["reward"].tolist() == [1.0] * 4


def test_the_world_below_is_what_a_reward_is_given() -> None:
    seen = []
    inner = GunneryEnv(GunneryConfig(4), seed=0)
    env = RewardWrapper(inner, lambda env, action, out: seen.append(env) or out["reward"])
    env.reset()
    env.step(actions(env, 1)[0])
    assert seen == [inner]
    assert env.unwrapped is inner


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        (
            lambda env, action, out: out["reward"].sum(),
            r"returned shape \(\), but must return a tensor of shape \(4,\)",
        ),
        (lambda env, action, out: 1.0, "returned float"),
        (lambda env, action, out: out["reward"] / 0.0, "must be finite"),
    ],
)
def test_a_reward_that_is_none_is_refused(reward: Any, sentence: str) -> None:
    env = RewardWrapper(GunneryEnv(GunneryConfig(4), seed=0), reward)
    env.reset()
    with pytest.raises(InputError, match=sentence):
        env.step(actions(env, 1)[0])


def test_rewards_are_found_by_file_and_by_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def pay(env, action, out):\n    return out['reward']\n\nRATE = 3\n")
    assert find_reward(f"{tmp_path / 'mine.py'}:pay").__name__ == "pay"  # type: ignore[attr-defined]
    assert isinstance(find_reward("tests.envs.test_reward_wrapper:Streak"), object)
    for wrong, sentence in {
        f"{tmp_path / 'mine.py'}:RATE": "must be callable as reward",
        f"{tmp_path / 'mine.py'}:nothing": r"There is no .*mine.py:nothing",
        f"{tmp_path / 'gone.py'}:pay": "There is no file",
        "no.such.module:pay": "no.such.module:pay cannot be imported",
        "pay": "is not a reference",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            find_reward(wrong)


def test_an_error_inside_a_reward_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "pay.py").write_text("def typo(env, action, out):\n    return out['rewrad']\n")
    env = RewardWrapper(GunneryEnv(GunneryConfig(num_envs=2)), find_reward(f"{tmp_path / 'pay.py'}:typo"))
    env.reset()
    spec = env.action_spec
    action = {name: torch.zeros(2, *part.shape, dtype=part.dtype) for name, part in spec.items()}
    with pytest.raises(InputError, match=r"The reward typo failed in .*pay.py, line 2: KeyError"):
        env.step(action)
