"""The observation `spacetime`, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from fledge.envs.checker import check_tensor_env
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv
from fledge.tasks.aircombat.observations import Spacetime
from fledge.tasks.aircombat.spacetime.envelope import Envelope

TIMES = [Spacetime.TIME_TO_DECIDE, Spacetime.ENEMY_TIME_TO_DECIDE]
MISSES = [Spacetime.MISS_HOLD, Spacetime.MISS_AWAY]


def make(num_envs: int = 2, seed: int = 0, **settings: object) -> AircombatEnv:
    return AircombatEnv(AircombatConfig(num_envs=num_envs, **settings), seed=seed)  # type: ignore[arg-type]


def act(env: AircombatEnv, fire: int = 0) -> TensorDict:
    n = env.num_envs
    shots = torch.zeros(n, dtype=torch.int64)
    shots[::2] = fire
    return env.step({"rudder": torch.zeros(n), "throttle": torch.ones(n), "fire": shots})


def look(env: AircombatEnv) -> torch.Tensor:
    """Observe the state as it is."""
    out = env.make_buffers()
    env.launcher.run(env._programs(out).observe)
    return out["obs"]["spacetime"]


def test_nose_to_nose_at_30_km() -> None:
    env = make()
    seen = env.reset()["obs"]["spacetime"]
    with Envelope() as envelope:
        ranges = envelope.lookup(300.0, 300.0)
        seconds = float(envelope.time_to_decide(30_000.0, 300.0, 300.0))
    shares = [30_000 / float(ranges[name]) for name in ("r_max_m", "r_tr_m", "r_ne_m")]
    for row in seen:
        assert row[:6].tolist() == pytest.approx([*shares, *shares], rel=1e-4)
        assert row[TIMES].tolist() == pytest.approx([seconds / 60] * 2, abs=0.02)
        assert row[MISSES].tolist() == [4, 4]
    env.close()


@pytest.mark.parametrize(("away", "saves"), [(14_000.0, False), (30_000.0, True)])
def test_a_missile_is_foreseen_to_hit_whoever_holds_and_to_miss_who_turns_in_time(away: float, saves: bool) -> None:
    env = make(start_range_m=away)
    env.reset()
    seen = act(env, fire=1)["obs"]["spacetime"]
    assert seen[0, MISSES].tolist() == [4, 4]  # the shooter has none to fear
    assert seen[1, Spacetime.MISS_HOLD] < 0.1
    assert (seen[1, Spacetime.MISS_AWAY] > 2.0) if saves else (seen[1, Spacetime.MISS_AWAY] < 0.1)
    env.close()


def test_the_time_to_decide_is_over_inside_r_tr_and_never_comes_to_who_flies_apart() -> None:
    env = make(num_envs=4, start_range_m=12_000.0)
    env.reset()
    env.state["dir"][2:] *= -1  # the second duel: tail to tail
    seen = look(env)
    assert seen[:2, TIMES].tolist() == [[0, 0], [0, 0]]
    assert seen[2:, TIMES].tolist() == [[2, 2], [2, 2]]
    env.close()


def test_mirrored_and_swapped_fights_look_the_same() -> None:
    env = make(num_envs=400, scenario=Scenario.random, seed=4)
    env.reset()
    for step in range(6):
        act(env, fire=int(step == 0))
    seen = look(env)
    for name in ("pos", "dir", "m_pos", "m_dir"):
        env.state[name][..., 1] *= -1
    torch.testing.assert_close(look(env), seen, rtol=1e-2, atol=0.02)
    for name, value in env.state.items():
        if value.shape[0] == env.num_envs:
            env.state[name].copy_(value.reshape(-1, 2, *value.shape[1:]).flip(1).reshape(value.shape))
    swapped = look(env).reshape(-1, 2, 10).flip(1).reshape(-1, 10)
    torch.testing.assert_close(swapped, seen, rtol=1e-2, atol=0.02)
    env.close()


def test_times_to_decide_agree_with_fly_outs() -> None:
    env = make(num_envs=80, scenario=Scenario.random, seed=9)
    env.reset()
    seen = look(env)
    pos, dir, speed = env.state["pos"], env.state["dir"], env.state["speed"]
    me, foe = slice(0, None, 2), slice(1, None, 2)
    r = pos[foe] - pos[me]

    def bearing(nose: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
        cross = nose[:, 0] * line[:, 1] - nose[:, 1] * line[:, 0]
        return torch.rad2deg(torch.atan2(cross, (nose * line).sum(1)))

    with Envelope() as envelope:  # the enemy shoots at me
        seconds = envelope.time_to_decide(
            r.norm(dim=1), speed[foe], speed[me], bearing(dir[foe], -r), bearing(dir[me], r)
        )
    truth = (seconds / 60).clamp(max=2.0)
    wrong = (seen[me, Spacetime.TIME_TO_DECIDE] - truth).abs() > 0.05  # 3 s
    assert float(wrong.float().mean()) < 0.1
    env.close()


@pytest.mark.parametrize("scenario", [Scenario.random, Scenario.defensive])
def test_the_contract_holds_with_it(scenario: Scenario) -> None:
    def build(num_envs: int, seed: int, seconds: float = 40.0) -> AircombatEnv:
        return make(num_envs, seed, scenario=scenario, max_episode_s=seconds)

    check_tensor_env(build, make_longer=lambda num_envs, seed: build(num_envs, seed, 60.0))


def test_without_it_there_is_no_such_observation_and_no_table() -> None:
    env = make(spacetime=False, load_limits=False)
    assert "spacetime" not in env.reset()["obs"]
    assert env.table is None
    env.close()
