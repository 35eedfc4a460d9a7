"""The duel under midrangeRL's names: the same numbers as the env itself, without that project's known faults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import fledge
from fledge.compat.midrange.config import read_config
from fledge.compat.tensor_env import TensorEnv
from fledge.core.errors import ConfigError, InputError
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv

CONFIG = {  # theirs, whole
    **{"BATTLEFIELD_SIZE": 50000, "INITIAL_DISTANCE_RATIO": 0.3, "WINDOW_WIDTH": 1600, "WINDOW_HEIGHT": 1000},
    **{"VIEW_WORLD_WIDTH": 50000, "VIEW_WORLD_HEIGHT": 50000, "GRID_SPACING": 1000, "PLAYER_ANCHOR_X_RATIO": 0.5},
    **{"FIGHTER_TERMINAL_VELOCITY": 400, "FIGHTER_MIN_TURN_RADIUS": 1000, "FIGHTER_MAX_THRUST": 1.5 * 9.8},
    **{"FIGHTER_LIFT_DRAG_RATIO": 5, "FIGHTER_MISSILES": 6, "MISSILE_TERMINAL_VELOCITY": 400},
    **{"MISSILE_MIN_TURN_RADIUS": 1000, "MISSILE_THRUST": 15 * 9.8, "MISSILE_ENGINE_DURATION": 10.0},
    **{"MISSILE_LIFT_DRAG_RATIO": 2, "MISSILE_GUIDANCE_GAIN": 200, "G": 9.8},
}


def make(num_envs: int = 4, **config: Any) -> TensorEnv:
    return TensorEnv({"spacetime": False, **config}, num_envs, device="cpu", num_threads=1)


def test_their_whole_config_is_our_defaults() -> None:
    read = read_config({**CONFIG, "spacetime": False}, 3)
    expected = AircombatConfig(num_envs=6, spacetime=False, reward="zero")
    for part in ("fighter", "missile"):
        for name, value in vars(getattr(expected, part)).items():
            assert getattr(getattr(read.cfg, part), name) == pytest.approx(value), name
    assert (read.cfg.num_envs, read.cfg.opponent, read.cfg.start_range_m) == (6, "", 30_000.0)


def test_their_settings_and_ours_change_what_they_name() -> None:
    cfg = read_config(
        {
            "FIGHTER_MAX_THRUST": 19.6,
            "initial_missiles": 2,
            "hit_radius": 50,
            "scenario": "random",
            "missile.burn_s": 3.0,
        },
        1,
    ).cfg
    assert cfg.fighter.thrust_g == pytest.approx(2.0)
    assert (cfg.missile.carried, cfg.missile.kill_radius_m, cfg.missile.burn_s) == (2, 50.0, 3.0)
    assert cfg.scenario is Scenario.random


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no setting FIGHTER_THRUST\. Did you mean FIGHTER_MAX_THRUST\?"):
        read_config({"FIGHTER_THRUST": 1}, 1)
    with pytest.raises(ConfigError, match="BATTLEFIELD_SIZE is 20000"):
        read_config({"BATTLEFIELD_SIZE": 20000}, 1)
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make(0)
    with pytest.raises(ConfigError, match="config is a list"):
        TensorEnv([1], 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_entities_per_env is 10, but two fighters with 6 missiles each need 14"):
        TensorEnv({"spacetime": False}, 1, 10)


def test_it_begins_where_theirs_begins() -> None:
    env = make(2)
    states = env.states
    assert states["x"].shape == (2, 20)
    assert states["x"][0, :2].tolist() == [10_000.0, 40_000.0]
    assert states["y"][0, :2].tolist() == [25_000.0, 25_000.0]
    assert states["angle"][0, :2].tolist() == [0.0, 180.0]
    obs = env.get_observations()
    assert obs["p1"]["x"].tolist() == pytest.approx([0.2, 0.2])
    assert obs["p2"]["angle"].tolist() == [0.5, 0.5]
    assert obs["p1"]["speed"].tolist() == [0.75, 0.75]
    assert obs["p1"]["enemy_distance"].tolist() == pytest.approx([0.6, 0.6])
    env.close()


def test_it_flies_what_the_env_flies() -> None:
    env = make(3, scenario="random")
    cfg = AircombatConfig(num_envs=6, spacetime=False, scenario=Scenario.random, reward="zero")
    truth = AircombatEnv(cfg, seed=0, num_threads=1)
    truth.reset()
    for t in range(40):
        turn = torch.linspace(-1, 1, 6)
        env.step({"p1_rudder": turn[0::2], "p2_rudder": turn[1::2], "p1_fire": t == 2}, dt=0.5)
        fire = torch.tensor([int(t == 2), 0] * 3)
        truth.step({"rudder": turn, "throttle": torch.ones(6), "fire": fire}, dt=0.5)
        for name in ("pos", "speed", "m_pos", "m_flying", "fired"):
            assert torch.equal(env.duel.state[name], truth.state[name]), (t, name)
    env.close()
    truth.close()


def test_missiles_stand_in_slots_with_their_owners_and_targets() -> None:
    env = make(1)
    env.step({"p2_fire": True}, dt=1.0)
    env.step({"p1_fire": True, "p2_fire": True}, dt=1.0)
    states = {name: value[0] for name, value in env.states.items()}
    assert states["is_missile"].nonzero().flatten().tolist() == [2, 3, 5]
    assert states["is_active"].nonzero().flatten().tolist() == [0, 1, 2, 3, 5]
    assert states["source_idx"][[0, 2, 3, 4, 5]].tolist() == [-1, 0, 1, -1, 1]
    assert states["target_idx"][[0, 2, 3, 4, 5]].tolist() == [-1, 1, 0, -1, 0]
    assert states["missile_count"][:4].tolist() == [5, 4, 0, 0]
    assert states["engine_time"][[2, 3]].tolist() == pytest.approx([9.0, 8.0])
    assert states["x"][3] < 40_000.0 - 300.0
    assert states["vx"][3] < -400.0
    env.close()


def test_each_side_has_its_own_relative_angle() -> None:
    env = make(1)
    for _ in range(4):
        obs, *_ = env.step({"p1_rudder": 1.0, "p2_rudder": 0.0}, dt=1.0)
    pos = torch.stack([env.states["x"][0, :2], env.states["y"][0, :2]], 1).double()
    for side, other in ((0, 1), (1, 0)):
        to = pos[other] - pos[side]
        bearing = torch.rad2deg(torch.atan2(to[1], to[0])) - env.states["angle"][0, side]
        expected = ((bearing + 180) % 360 - 180) / 180
        assert obs[f"p{side + 1}"]["enemy_relative_angle"][0].item() == pytest.approx(expected.item(), abs=1e-5)
    assert abs(obs["p1"]["enemy_relative_angle"][0]) > 0.2
    assert abs(obs["p2"]["enemy_relative_angle"][0]) < 0.05
    env.close()


def shot_down(num_envs: int = 3) -> tuple[TensorEnv, Any]:
    """P1 of the last duel shoots P2, which flies straight on; in the first, P2 shoots P1."""
    env = make(num_envs, BATTLEFIELD_SIZE=30_000)
    first, last = torch.zeros(num_envs, dtype=torch.bool), torch.zeros(num_envs, dtype=torch.bool)
    first[0] = last[-1] = True
    result = env.step({"p1_fire": last, "p2_fire": first}, dt=1.0)
    while not result[2].any():
        result = env.step({}, dt=1.0)
    return env, result


def test_a_kill_names_the_winner_pays_both_sides_and_ends_the_fight() -> None:
    env, (_, rewards, dones, infos) = shot_down()
    assert dones.tolist() == [True, False, True]
    assert infos["winner"].tolist() == [2, 0, 1]
    assert infos["p1_alive"].tolist() == [False, True, True]
    assert infos["p2_alive"].tolist() == [True, True, False]
    assert rewards["p1"].tolist() == pytest.approx([-500.0, 0.1, 500.0])
    assert rewards["p2"].tolist() == pytest.approx([500.0, 0.1, -500.0])
    env.close()


def test_an_ended_fight_stands_still_and_pays_nothing_more_while_the_others_go_on() -> None:
    env, (before, _, _, _) = shot_down()
    places = env.states["x"].clone()
    after, rewards, dones, infos = env.step({"p1_rudder": 1.0}, dt=1.0)
    assert dones.tolist() == [True, False, True]
    assert infos["winner"].tolist() == [2, 0, 1]
    assert rewards["p1"].tolist() == pytest.approx([0.0, 0.1, 0.0])
    moved = (env.states["x"] != places).any(1)
    assert moved.tolist() == [False, True, False]
    for name, value in after["p1"].items():
        assert torch.equal(value[0], before["p1"][name][0]), name
    env.close()


def test_a_masked_reset_clears_done_only_there_and_returns_the_new_observation() -> None:
    env, _ = shot_down()
    elsewhere = env.states["x"][1].clone()
    obs = env.reset(env_mask=torch.tensor([True, False, False]))
    assert env.done.tolist() == [False, False, True]
    assert env.winner.tolist() == [0, 0, 1]
    assert obs["p1"]["x"][0].item() == pytest.approx(1 / 3)
    assert obs["p1"]["alive"].tolist() == [1.0, 1.0, 1.0]
    assert obs["p2"]["alive"].tolist() == [1.0, 1.0, 0.0]
    assert torch.equal(env.states["x"][1], elsewhere)
    _, _, dones, _ = env.step({}, dt=1.0)
    assert dones.tolist() == [False, False, True]
    env.close()


def test_the_clock_ends_a_fight_without_a_winner_and_is_no_draw() -> None:
    env = make(1, max_episode_s=2.0)
    env.step({}, dt=1.0)
    _, rewards, dones, infos = env.step({}, dt=1.0)
    assert dones.tolist() == infos["truncated"].tolist() == [True]
    assert infos["winner"].tolist() == [0]
    assert rewards["p1"].tolist() == [0.0]
    env.close()


def test_rewards_can_be_asked_for_and_set() -> None:
    env = make(3, reward_win=1.0, reward_lose=-2.0, reward_draw=0.5, reward_survive=0.0)
    paid = env.compute_rewards(torch.tensor([True, True, False]), torch.tensor([1, 0, 2]))
    assert paid["p1"].tolist() == [1.0, 0.5, 0.0]
    assert paid["p2"].tolist() == [-2.0, 0.5, 0.0]
    env.close()


def test_a_kill_does_not_depend_on_how_far_time_is_stretched() -> None:
    def time_of_kill(time_scale: float) -> float:
        env = make(1)
        dt, steps, dones = time_scale / 60, 1, env.step({"p1_fire": True}, dt=time_scale / 60)[2]
        while not dones.any():
            dones = env.step({}, dt=dt)[2]
            steps += 1
        env.close()
        return steps * dt

    assert time_of_kill(1.0) == pytest.approx(time_of_kill(8.0), rel=0.01)


def test_every_pilot_that_needs_no_graph_and_a_new_network_act_on_what_is_observed() -> None:
    env = make(4)
    obs = env.reset()
    for name in ("placeholder", "random", "ppo"):
        agent = fledge.create_agent(name, "cpu", 4, config={"spacetime": False})
        action = agent.act(obs["p2"])
        assert set(action) == {"rudder", "throttle", "fire"}
        assert all(value.shape == (4,) for value in action.values())
        assert action["fire"].dtype == torch.bool
        env.step({f"p2_{part}": value for part, value in action.items()})
    with pytest.raises(ConfigError, match="crank needs the observations spacetime, which this env lacks"):
        fledge.create_agent("rule_based", "cpu", 4).act(obs["p1"])
    with pytest.raises(ConfigError, match="'ace' is not a known agent"):
        fledge.create_agent("ace")
    with pytest.raises(ConfigError, match=r"The policy file x\.fledge does not exist"):
        fledge.create_agent("x.fledge")
    env.close()


def test_pilots_that_read_the_space_time_graph_win_what_they_should() -> None:
    env = TensorEnv(num_envs=2, device="cpu", num_threads=1)
    agent, opponent = fledge.create_agent("crank", "cpu", 2), fledge.create_agent("placeholder", "cpu", 2)
    obs, dones = env.reset(), env.done
    for _ in range(60):
        red, blue = agent.act(obs["p1"]), opponent.act(obs["p2"])
        actions = {f"p1_{k}": v for k, v in red.items()} | {f"p2_{k}": v for k, v in blue.items()}
        obs, _, dones, infos = env.step(actions, dt=1.0)
    assert dones.all()
    assert infos["winner"].tolist() == [1, 1]
    env.close()


def test_our_rewards_read_what_the_env_hands_out() -> None:
    env, (obs, _, dones, infos) = shot_down()
    pay = fledge.create_reward("win_loss", "cpu").compute(obs["p1"], obs["p1"], {}, dones, infos)
    assert pay.tolist() == [-1.0, 0.0, 1.0]
    theirs = fledge.create_reward("win_loss").compute(obs["p2"], obs["p2"], {}, dones, infos["p2"])
    assert theirs.tolist() == [1.0, 0.0, -1.0]
    shaped = fledge.create_reward("shaped").compute(obs["p1"], obs["p1"], {}, dones, infos)
    assert torch.isfinite(shaped).all()
    env.close()


def test_bad_actions_get_a_sentence() -> None:
    env = make(2)
    with pytest.raises(InputError, match="actions has p1_ruder, but only p1_rudder"):
        env.step({"p1_ruder": 0.0})
    with pytest.raises(InputError, match=r"rudder is shape \(3,\), but must be a number or a tensor \(2,\)"):
        env.step({"p1_rudder": torch.zeros(3)})
    with pytest.raises(InputError, match="but must be finite"):
        env.step({"p2_throttle": float("nan")})
    with pytest.raises(InputError, match=r"env_mask is torch\.float32"):
        env.reset(torch.ones(2))
    with pytest.raises(InputError, match="dt is -1"):
        env.step({}, dt=-1)
    env.close()


def test_the_gym_wrapper_takes_and_gives_arrays() -> None:
    env = fledge.GymWrapper({"spacetime": False}, num_envs=3, device="cpu")
    obs, info = env.reset(seed=5)
    assert env.observation_space.contains(obs)
    assert info["p1_alive"].tolist() == [True] * 3
    env.action_space.seed(0)
    obs, rewards, dones, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert set(rewards) == {"p1", "p2"}
    assert rewards["p1"].shape == dones.shape == truncated.shape == info["winner"].shape == (3,)
    assert isinstance(obs["x"], np.ndarray)
    env.close()


@pytest.mark.parametrize(
    "config",
    [{"BATTLEFIELD_SIZE": "wide"}, {"reward_win": "a"}, {"MISSILE_THRUST": None}, {"MISSILE_THRUST": [1]}, {5: 1},
     {"BATTLEFIELD_SIZE": math.inf}, {"reward_draw": math.nan}, {"hit_radius": {}}],
    ids=str,
)  # fmt: skip
def test_a_value_that_is_no_number_is_refused_in_a_sentence(config: dict[Any, Any]) -> None:
    with pytest.raises(ConfigError):
        TensorEnv({"spacetime": False, **config}, num_envs=2, device="cpu")
