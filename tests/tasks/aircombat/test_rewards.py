"""Rewards of the duel: every term fires, weights count, shaping is a difference of potentials."""

from pathlib import Path

import pytest
import torch

from fledge.core.errors import ConfigError, InputError
from fledge.envs.reward_wrapper import reached
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.physics.structs import Outcome
from fledge.tasks.aircombat.rewards import (
    TERMS,
    BaseReward,
    ShapedReward,
    SumReward,
    WinLossReward,
    ZeroReward,
    create_reward,
)

ROWS = 64


def env_with(reward: str, **settings: object) -> AircombatEnv:
    cfg = AircombatConfig(num_envs=ROWS, spacetime=False, scenario=Scenario.chase, reward=reward, **settings)  # type: ignore[arg-type]
    return AircombatEnv(cfg, seed=3, num_threads=1)


def straight_and_fire(rows: int = ROWS) -> dict[str, torch.Tensor]:
    fire = torch.ones(rows, dtype=torch.int64)
    return {"rudder": torch.zeros(rows), "throttle": torch.ones(rows), "fire": fire}


@pytest.mark.parametrize("name", [name for name in TERMS if name != "zero"])
def test_every_term_pays_something_in_a_real_fight(name: str) -> None:
    env = env_with(name)
    env.reset()
    paid = torch.zeros(ROWS)
    for _ in range(40):
        paid += env.step(straight_and_fire())["reward"].abs()
    env.close()
    assert (paid > 0).any()


def test_a_win_pays_one_and_a_loss_takes_one_in_the_step_of_the_kill() -> None:
    env = env_with("win_loss")
    env.reset()
    seen = set()
    for _ in range(60):
        out = env.step(straight_and_fire())
        expected = (out["outcome"] == Outcome.WIN).float() - (out["outcome"] == Outcome.LOSS).float()
        assert torch.equal(out["reward"], expected)
        seen |= set(out["outcome"].unique().tolist())
    env.close()
    assert {int(Outcome.WIN), int(Outcome.LOSS)} <= seen


def test_shaping_sums_to_the_difference_of_potentials() -> None:
    env = env_with("zero", max_episode_s=30.0)
    shaping = ShapedReward(gamma=1.0)
    before = dict(env.reset()["obs"].items())
    begun = shaping.potential(before).clone()
    total, finished = torch.zeros(ROWS), 0
    action = {**straight_and_fire(), "rudder": torch.linspace(-0.5, 0.5, ROWS)}
    for _ in range(60):
        out = env.step(action)
        after = reached(out)
        done = out["terminated"] | out["truncated"]
        total += shaping.compute(before, after, action, done, {"terminated": out["terminated"]})
        if done.any():
            last = shaping.potential(after) * (~out["terminated"]).float()
            torch.testing.assert_close(total[done], (last - begun)[done], atol=1e-4, rtol=0)
            finished += int(done.sum())
        before = {name: value.clone() for name, value in out["obs"].items()}
        begun = torch.where(done, shaping.potential(before), begun)
        total = torch.where(done, 0.0, total)
    env.close()
    assert finished > ROWS


def test_the_sum_of_terms_is_weighted_and_signed() -> None:
    reward = create_reward("win_loss + 0.5*shaped-0.25*shots")
    assert isinstance(reward, SumReward)
    assert [weight for weight, _ in reward.terms] == [1.0, 0.5, -0.25]
    info = {
        "outcome": torch.tensor([int(Outcome.WIN), 0]),
        "terminated": torch.tensor([True, False]),
        "shots": torch.tensor([1, 2]),
    }
    done = torch.tensor([True, False])
    obs = {"state": torch.zeros(2, 15)}
    assert reward.compute(obs, obs, {}, done, info).tolist() == [0.75, -0.5]


def test_the_return_of_a_fight_is_the_sum_of_its_rewards() -> None:
    env = env_with("win_loss+0.3*shaped-0.1*shots", max_episode_s=25.0)
    env.reset()
    total = torch.zeros(ROWS)
    for _ in range(60):
        out = env.step(straight_and_fire())
        total += out["reward"]
        done = out["terminated"] | out["truncated"]
        torch.testing.assert_close(out["episode_return"][done], total[done], atol=1e-5, rtol=1e-5)
        total = torch.where(done, 0.0, total)
    env.close()


class PaysTwo(BaseReward):
    def compute(self, obs_before, obs_after, action, done, info):  # type: ignore[no-untyped-def]
        return torch.full(done.shape, 2.0)


def test_a_reward_of_ones_own_is_named_by_module_and_class() -> None:
    reward = create_reward("fledge.tasks.aircombat.rewards:ZeroReward")
    assert isinstance(reward, ZeroReward)
    assert create_reward("win_loss", draw=-0.5).compute(
        {}, {}, {}, torch.tensor([True]), {"outcome": torch.tensor([int(Outcome.SPENT)])}
    ).tolist() == [-0.5]
    assert isinstance(create_reward(), WinLossReward)


NONSENSE = ["", "fame", "win_loss*2", "win_loss shaped", "2**shaped", "os:system", "1e999*shots", "nowhere.py:Mine"]


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"reward|nowhere"):
        create_reward(name)


def test_options_of_the_wrong_term_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not accept fame"):
        create_reward("win_loss", fame=1)
    with pytest.raises(ConfigError, match="only for a reward of one term"):
        create_reward("win_loss+shaped", gamma=1)


MINE = """
import torch
from fledge import BaseReward

class Mine(BaseReward):
    def compute(self, obs_before, obs_after, action, done, info):
        seen = self.state.get("seen", torch.zeros(done.shape))
        self.state = {"seen": seen + obs_before["state"][:, 0]}
        return self.state["seen"].clone()

    def reset(self, env_mask=None):
        if self.state:
            self.state = {"seen": self.state["seen"].masked_fill(env_mask, 0.0)}

class Scalar(BaseReward):
    def compute(self, obs_before, obs_after, action, done, info):
        return torch.ones(1)

class Broken(BaseReward):
    def compute(self, obs_before, obs_after, action, done, info):
        return obs_after["fuel"]

class Endless(BaseReward):
    def compute(self, obs_before, obs_after, action, done, info):
        return torch.full(done.shape, float("inf"))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my-own+rewards.py"
    path.write_text(MINE)
    return str(path)


def test_a_reward_in_a_file_remembers_across_a_saved_state(file: str) -> None:
    envs = [env_with(f"{file}:Mine") for _ in range(2)]
    envs[0].reset()
    for _ in range(30):
        envs[0].step(straight_and_fire())
    envs[1].load_state_dict(envs[0].state_dict())
    for _ in range(30):
        ours, theirs = (env.step(straight_and_fire()) for env in envs)
        assert torch.equal(ours["reward"], theirs["reward"])
    assert ours["reward"].min() > 0
    for env in envs:
        env.close()


@pytest.mark.parametrize(
    ("name", "said"), [("Scalar", "shape"), ("Broken", r"rewards.py, line \d+: KeyError"), ("Endless", "finite")]
)
def test_a_reward_that_pays_nonsense_is_told_so(file: str, name: str, said: str) -> None:
    env = env_with(f"{file}:{name}")
    env.reset()
    with pytest.raises(InputError, match=said):
        env.step(straight_and_fire())
    env.close()


@pytest.mark.parametrize("reward", ["win_loss", "win_loss-0.1*shots", "zero"])
def test_rewards_that_do_not_look_back_cost_no_copy(reward: str) -> None:
    env = env_with(reward)
    assert not env._seen
    env.close()


def test_a_state_saved_without_a_look_back_pays_on_by_one_that_has_it() -> None:
    plain, shaped = env_with("win_loss"), env_with("shaped")
    for env in (plain, shaped):
        env.reset()
    for _ in range(5):
        plain.step(straight_and_fire())
        shaped.step(straight_and_fire())
    other = env_with("shaped")
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other.step(straight_and_fire())["reward"], shaped.step(straight_and_fire())["reward"])
    for env in (plain, shaped, other):
        env.close()
