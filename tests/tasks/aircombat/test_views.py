"""The duel as the house sees it: both views keep the contract of TensorEnv."""

import dataclasses
from typing import Any

import pytest
import torch

from fledge.core.errors import ConfigError, InputError
from fledge.envs.checker import check_tensor_env
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.envs.placement import EnvPlacement
from fledge.tasks.aircombat.config import ActionForm, AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.pilots import PlaceholderPilot, RandomPilot
from fledge.tasks.aircombat.policy import DuelPolicy
from fledge.tasks.registry import find_task


def settings(num_envs: int, **changed: object) -> AircombatConfig:
    chosen = {"spacetime": False, "scenario": Scenario.mixed, "max_episode_s": 40.0, **changed}
    return AircombatConfig(num_envs=num_envs, **chosen)  # type: ignore[arg-type]


def versus(
    cfg: AircombatConfig, *opponents: object, weights: list[float] | None = None, env_offset: int = 0
) -> OpponentWrapper:
    both = dataclasses.replace(cfg, num_envs=2 * cfg.num_envs)
    duel = AircombatEnv(both, seed=2, num_threads=1, env_offset=2 * env_offset)
    return OpponentWrapper(duel, opponents, weights, env_offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", list(ActionForm))
def test_self_play_keeps_the_contract(form: ActionForm) -> None:
    def make(num_envs: int, seed: int, limit: float = 40.0) -> AircombatEnv:
        return AircombatEnv(settings(num_envs, action_form=form, max_episode_s=limit), seed=seed, num_threads=1)

    met = check_tensor_env(make, num_envs=16, make_longer=lambda num_envs, seed: make(num_envs, seed, 60.0))
    assert met.terminated
    assert met.truncated


@pytest.mark.parametrize("opponent", ["placeholder", "random"])
def test_against_an_opponent_the_contract_holds_too(opponent: str) -> None:
    def make(num_envs: int, seed: int, limit: float = 40.0) -> OpponentWrapper:
        cfg = settings(num_envs, max_episode_s=limit, opponent=opponent)
        env = find_task("aircombat").make_env(cfg, EnvPlacement(seed=seed, num_threads=1))
        assert isinstance(env, OpponentWrapper)
        return env

    met = check_tensor_env(make, num_envs=16, make_longer=lambda num_envs, seed: make(num_envs, seed, 60.0))
    assert met.terminated
    assert met.truncated


def test_the_callers_row_is_his_side_of_the_duel() -> None:
    env = versus(settings(4), PlaceholderPilot())
    out = env.reset()
    assert env.mine.tolist() == [0, 3, 4, 7]
    both = env.both.reset(torch.zeros(8, dtype=torch.bool))
    assert torch.equal(out["obs"]["state"], both["obs"]["state"][env.mine])
    action = {
        "rudder": torch.ones(4),
        "throttle": torch.ones(4),
        "fire": torch.zeros(4, dtype=torch.int64),
    }
    env.step(action)
    assert env.both.state["rudder"].view(4, 2).sum(1).tolist() == [1.0] * 4
    assert env.both.state["rudder"][env.mine].tolist() == [1.0] * 4
    env.close()


def test_the_side_goes_on_alternating_over_ranks() -> None:
    env = versus(settings(3, opponent="x"), PlaceholderPilot(), env_offset=3)
    assert env.mine.tolist() == [1, 2, 5]
    env.close()


def test_an_opponent_that_draws_goes_on_drawing_after_a_resume() -> None:
    def make() -> OpponentWrapper:
        return versus(settings(8), RandomPilot())

    action = {"rudder": torch.zeros(8), "throttle": torch.ones(8), "fire": torch.zeros(8, dtype=torch.int64)}
    env, other = make(), make()
    env.reset()
    for _ in range(5):
        env.step(action)
    state = env.state_dict()
    ahead = [env.step(action)["obs"]["state"] for _ in range(5)]
    other.load_state_dict(state)
    again = [other.step(action)["obs"]["state"] for _ in range(5)]
    assert all(torch.equal(a, b) for a, b in zip(ahead, again, strict=True))
    env.close()
    other.close()


def test_a_mask_that_splits_a_duel_is_refused() -> None:
    env = AircombatEnv(settings(4), num_threads=1)
    env.reset()
    with pytest.raises(InputError, match="splits an episode"):
        env.reset(torch.tensor([True, False, False, False]))
    env.close()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="even number"):
        AircombatEnv(settings(3), num_threads=1)
    with pytest.raises(ConfigError, match=r"must be at most env\.max_range_m"):
        AircombatEnv(settings(2, min_range_m=9e4), num_threads=1)
    with pytest.raises(ConfigError, match=r"env.opponent='ace' is not a known pilot"):
        find_task("aircombat").make_env(settings(2, opponent="ace"))


def test_a_decision_of_another_length_is_flown_as_finely() -> None:
    env = AircombatEnv(settings(2, scenario=Scenario.head_on, max_episode_s=240.0), num_threads=1)
    action = {"rudder": torch.zeros(2), "throttle": torch.ones(2), "fire": torch.zeros(2, dtype=torch.int64)}
    env.reset()
    for _ in range(4):
        env.step(action)
    whole = env.state["pos"].clone()
    env.reset()
    for dt in (0.25, 0.75, 3.0):
        env.step(action, dt=dt)
    torch.testing.assert_close(env.state["pos"], whole, atol=0.02, rtol=0)
    with pytest.raises(InputError, match="more than 0"):
        env.step(action, dt=0.0)
    env.close()


class Turner(PlaceholderPilot):
    """Turns as hard as it can, to one side."""

    def __init__(self, rudder: float) -> None:
        super().__init__()
        self.rudder = rudder

    def act(self, obs, deterministic=True):  # type: ignore[no-untyped-def]
        action = super().act(obs)
        return {**action, "rudder": torch.full_like(action["rudder"], self.rudder)}  # type: ignore[dict-item]


def test_each_row_meets_the_opponent_that_was_drawn_for_it_and_weights_count() -> None:
    env = versus(settings(2000, max_episode_s=8.0), Turner(1.0), Turner(-1.0), weights=[3.0, 1.0])
    env.reset()
    action = {"rudder": torch.zeros(2000), "throttle": torch.ones(2000), "fire": torch.zeros(2000, dtype=torch.int64)}
    env.step(action)
    drawn = env.opponent.clone()
    assert torch.equal(env.both.state["rudder"][env.theirs], 1.0 - 2.0 * drawn)  # type: ignore[attr-defined]
    assert 0.72 < float((drawn == 0).float().mean()) < 0.78
    for _ in range(7):
        env.step(action)
    results = env.take_results()
    assert results.sum(1).tolist() == [int((drawn == 0).sum()), int((drawn == 1).sum())]
    assert env.take_results().sum() == 0
    assert not torch.equal(env.opponent, drawn)  # new episodes, new draws
    env.set_opponents(env.opponents, [0.0, 1.0])
    env.reset()
    assert (env.opponent == 1).all()
    env.close()


def test_opponents_may_be_added_but_not_lost() -> None:
    env = versus(settings(2), PlaceholderPilot())
    with pytest.raises(InputError, match="at least 1"):
        env.set_opponents([])
    with pytest.raises(InputError, match="at least one above 0"):
        env.set_opponents([PlaceholderPilot()], [0.0])
    env.set_opponents([*env.opponents, RandomPilot()], [1.0, 1.0])
    state = env.state_dict()
    other = versus(settings(2), PlaceholderPilot())
    with pytest.raises(InputError, match="saved with 2 opponents"):
        other.load_state_dict(state)
    env.close()
    other.close()


# ---- recurrent opponents ---------------------------------------------------------------------------------------------


def recurrent(size: int, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    duel = AircombatEnv(settings(2), seed=2, num_threads=1)
    policy = DuelPolicy(duel.cfg.missile.carried, False, duel.action_spec, (16,), 8, gru_size=size).eval()
    duel.close()
    with torch.no_grad():
        policy.head.heads["rudder"].layer.weight *= 100.0  # so that the memory shows in the actions
    return policy


@pytest.mark.parametrize("count", [1, 3])
def test_a_recurrent_opponent_remembers_each_row_from_the_beginning_of_its_episode(count: int) -> None:
    """Against each row on its own: its opponent, and a state that is cleared with the row's episode."""
    opponents = [recurrent(5), recurrent(7, 1), recurrent(5, 2)][:count]
    env = versus(settings(10, max_episode_s=6.0), *opponents)
    env.reset()
    states = [torch.zeros(1, opponents[int(k)].hidden_size) for k in env.opponent]
    idle = {"rudder": torch.zeros(10), "throttle": torch.ones(10), "fire": torch.zeros(10, dtype=torch.int64)}
    drawn, episodes = set(), 0
    for _ in range(15):
        seen, expected = {k: v[env.theirs].clone() for k, v in env._out["obs"].items()}, []
        drawn |= {*env.opponent.tolist()}
        for row in range(10):
            opponent = opponents[int(env.opponent[row])]
            action, states[row] = opponent.act_with({k: v[row : row + 1] for k, v in seen.items()}, states[row])
            expected.append(action["rudder"])
        out = env.step(idle)
        torch.testing.assert_close(env._actions["rudder"][env.theirs], torch.cat(expected), rtol=1e-4, atol=1e-5)
        for row in (out["terminated"] | out["truncated"]).nonzero().flatten().tolist():
            states[row], episodes = torch.zeros(1, opponents[int(env.opponent[row])].hidden_size), episodes + 1
    assert drawn == set(range(count))
    assert episodes > 10
    env.close()


def test_two_envs_can_share_a_recurrent_opponent_and_each_resumes_with_its_own_states() -> None:
    opponent = recurrent(5)
    first, second = versus(settings(4), opponent), versus(settings(4), opponent, env_offset=4)
    idle = {"rudder": torch.zeros(4), "throttle": torch.ones(4), "fire": torch.zeros(4, dtype=torch.int64)}
    for env in (first, second):
        env.reset()
    for _ in range(3):
        first.step(idle)
    second.step(idle)
    assert not torch.equal(first.hidden[0], second.hidden[0])
    saved = first.state_dict()
    ours = [first.step(idle)["obs"]["state"].clone() for _ in range(4)]
    other = versus(settings(4), opponent)
    other.load_state_dict(saved)
    assert all(torch.equal(each, other.step(idle)["obs"]["state"]) for each in ours)
    first.set_opponents([PlaceholderPilot()])
    assert not first.hidden
    for env in (first, second, other):
        env.close()
