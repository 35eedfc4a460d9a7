"""NavigationEnv: each promise of the task, against a twin, a hand-worked number or an independent reconstruction."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import ConfigError, FormatError, InputError, MemoryBudgetError, NumericsError
from fledge.tasks.navigation.config import ActionForm, Dynamics, Layout, NavigationConfig, RandomizeConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.structs import Outcome

Make = Callable[..., NavigationEnv]
DT = 0.016
NOISE = RandomizeConfig(lidar_noise_m=0.1, lidar_dropout=0.1, state_noise=0.1)
# Fast drones: most crash within a few steps, the others are cut off.
FAST: dict[str, Any] = {"dynamics": Dynamics.first_order, "speed_limit": 60.0, "max_episode_steps": 20}
MAPS: dict[str, dict[str, Any]] = {
    "lasting maps": {},
    "refreshed maps": {"map_refresh_steps": 7},
    "fresh maps": {"fresh_maps": True},
}
every_kind_of_maps = pytest.mark.parametrize("maps", MAPS.values(), ids=MAPS)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes small envs and closes them after the test."""
    made: list[NavigationEnv] = []

    def build(
        seed: int = 3, threads: int = 2, offset: int = 0, total: int | None = None, bank: int = 0, **options: Any
    ) -> NavigationEnv:
        small: dict[str, Any] = {"num_envs": 16, "num_maps": 4, "static_obstacles": 100, "moving_obstacles": 16}
        cfg = NavigationConfig(**(small | options))
        env = NavigationEnv(cfg, seed=seed, num_threads=threads, env_offset=offset, total_envs=total, bank=bank)
        made.append(env)
        return env

    yield build
    for env in made:
        env.close()


def action(t: int, n: int = 16) -> Tensor:
    """The same action for drone i at step t, however many drones there are; held for ten steps."""
    return torch.rand(64, 3, generator=torch.Generator().manual_seed(t // 10))[:n]


def fly(
    env: NavigationEnv, steps: int, first: int = 0, reset: bool = True, rows: slice | None = None
) -> list[TensorDict]:
    """Results of a reset and of scripted steps; `rows` are the drones of a larger population."""
    results = [env.reset()] if reset else []
    for t in range(first, first + steps):
        mine = action(t, 64)[rows] if rows is not None else action(t, env.num_envs)
        results.append(env.step(mine))
    return results


def assert_same(a: list[TensorDict], b: list[TensorDict]) -> None:
    for t, (x, y) in enumerate(zip(a, b, strict=True)):
        for key in x.keys(True, True):
            assert torch.equal(x[key], y[key]), f"{key} differs after {t} steps"


def ended(result: TensorDict) -> Tensor:
    return result["terminated"] | result["truncated"]


def at_rest(n: int) -> Tensor:
    return torch.full((n, 3), 0.5)


# ---- one result whatever the machine ---------------------------------------------------------------------------------


@every_kind_of_maps
def test_trajectories_are_bit_identical_for_1_2_and_8_threads(make: Make, maps: dict[str, Any]) -> None:
    options = (
        FAST | maps | {"num_envs": 16, "randomize": NOISE, "lidar_sees_movers": True, "grid_map": True, "grid_size": 8}
    )
    one, two, eight = (fly(make(threads=k, **options), 100) for k in (1, 2, 8))
    assert sum(int(ended(r).sum()) for r in one) > 60
    assert_same(one, two)
    assert_same(one, eight)


@every_kind_of_maps
@pytest.mark.parametrize("starts", Starts)
def test_one_env_of_32_flies_like_two_envs_of_16(make: Make, maps: dict[str, Any], starts: Starts) -> None:
    layout = Layout.arena if starts in (Starts.lane, Starts.corridor) else Layout.forest
    options = FAST | maps | {"starts": starts, "layout": layout, "randomize": NOISE}
    whole = fly(make(num_envs=32, **options), 45, rows=slice(0, 32))
    for offset in (0, 16):
        part = make(num_envs=16, offset=offset, total=32, **options)
        rows = slice(offset, offset + 16)
        assert_same([r[rows] for r in whole], fly(part, 45, rows=rows))


def test_a_drone_that_sees_less_is_not_smaller(make: Make) -> None:
    generator = torch.Generator().manual_seed(1)
    actions = [torch.rand(64, 3, generator=generator) for _ in range(40)]
    crashes = []
    for lidar in ({}, {"lidar_azimuths": 1}, {"lidar_azimuths": 7, "lidar_elevations_deg": [60.0]}):
        env = make(
            num_envs=64,
            static_obstacles=350,
            starts=Starts.mixed,
            inside_share=1.0,
            speed_limit=6.0,
            decimation=8,
            **lidar,
        )
        env.reset()
        seen = [env.step(action) for action in actions]
        crashes.append(torch.stack([out["outcome"] for out in seen]))
    assert (crashes[0] == int(Outcome.COLLISION_STATIC)).sum() > 20
    assert all(torch.equal(each, crashes[0]) for each in crashes[1:])


def test_the_seed_decides_everything_and_nothing_else_does(make: Make) -> None:
    assert_same(fly(make(seed=3), 20), fly(make(seed=3), 20))
    a, b = make(seed=3), make(seed=2**40 + 3)
    assert not torch.equal(a.reset()["obs"]["direction"], b.reset()["obs"]["direction"])
    assert not torch.equal(a.bank.boxes, b.bank.boxes)
    assert not torch.equal(a.bank.tensors["origin"], b.bank.tensors["origin"])


@every_kind_of_maps
def test_two_banks_of_one_seed_share_starts_but_no_map(make: Make, maps: dict[str, Any]) -> None:
    a, b = make(bank=0, **maps), make(bank=1, **maps)
    assert torch.equal(a.reset()["obs"]["direction"], b.reset()["obs"]["direction"])
    for one in a.bank.boxes[: a.bank.active]:
        assert not any(torch.equal(one, other) for other in b.bank.boxes[: b.bank.active])


def test_buffers_given_and_buffers_made_hold_the_same_numbers(make: Make) -> None:
    given = make(**FAST)
    buffers = [given.make_buffers() for _ in range(31)]
    given.reset(out=buffers[0])
    for t in range(30):
        assert given.step(action(t), out=buffers[t + 1]) is buffers[t + 1]
    assert_same(buffers, fly(make(**FAST), 30))


def test_results_of_calls_without_out_die_with_their_last_user(make: Make) -> None:
    env = make()
    refs = [weakref.ref(result["obs"]["lidar"]) for result in fly(env, 3)]
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_an_out_with_only_observations_is_enough(make: Make) -> None:
    env, twin = make(**FAST), make(**FAST)
    out = TensorDict({"obs": env.make_buffers()["obs"]}, [16])
    env.reset(out=out)
    for t, expected in enumerate(fly(twin, 25)[1:]):
        env.step(action(t), out=out)
        assert torch.equal(out["obs"]["lidar"], expected["obs"]["lidar"])
    assert torch.equal(env.state["episode"], twin.state["episode"])


# ---- episodes --------------------------------------------------------------------------------------------------------


def test_an_episode_is_truncated_after_exactly_its_number_of_steps(make: Make) -> None:
    env = make(max_episode_steps=12)
    results = fly(env, 24)
    for t, result in enumerate(results[1:], 1):
        assert bool(result["truncated"].all()) == (t % 12 == 0)
        assert not result["terminated"].any()
        assert bool((result["outcome"] == Outcome.TIMEOUT).all()) == (t % 12 == 0)
    assert (results[12]["episode_length"] == 12).all()
    total = torch.stack([r["reward"] for r in results[1:13]]).sum(0)
    torch.testing.assert_close(results[12]["episode_return"], total)


def test_truncation_counts_physics_steps_and_cuts_a_decision_short(make: Make) -> None:
    env = make(max_episode_steps=10, decimation=4)
    results = fly(env, 3)
    assert not any(ended(r).any() for r in results[:3])
    assert results[3]["truncated"].all()
    assert (results[3]["episode_length"] == 3).all()


def test_an_end_is_terminated_or_truncated_but_never_both_even_on_the_last_step(make: Make) -> None:
    env = make(max_episode_steps=5, dynamics=Dynamics.first_order)
    env.reset()
    for _ in range(4):
        env.step(at_rest(16))
    env.state["pos"][:8, 2] = 0.21
    env.state["vel"][:8, 2] = -10.0  # below 0.2 m by the next step
    result = env.step(at_rest(16))
    assert result["terminated"].tolist() == [True] * 8 + [False] * 8
    assert result["truncated"].tolist() == [False] * 8 + [True] * 8
    assert result["outcome"].tolist() == [Outcome.OUT_OF_BOUNDS] * 8 + [Outcome.TIMEOUT] * 8


def test_reaching_the_goal_ends_the_episode_unless_told_otherwise(make: Make) -> None:
    for ends in (True, False):
        env = make(success_ends_episode=ends, max_episode_steps=4, moving_obstacles=0, dynamics=Dynamics.first_order)
        env.reset()
        env.step(at_rest(16))
        env.state["pos"][:5] = env.state["goal"][:5] + torch.tensor([0.3, 0.0, 0.0])
        results = [env.step(at_rest(16)) for _ in range(3)]
        assert bool(results[0]["terminated"][:5].all()) is ends
        assert not results[0]["terminated"][5:].any()
        if not ends:
            assert results[2]["truncated"].all()
        outcome = results[0 if ends else 2]["outcome"][:5]
        assert (outcome == Outcome.SUCCESS).all()


def test_obs_is_the_next_episodes_first_and_final_obs_the_last_of_the_one_that_ended(make: Make) -> None:
    env = make(max_episode_steps=3, dynamics=Dynamics.first_order, moving_obstacles=0)
    env.reset()
    command = torch.rand(16, 3, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        env.step(command)
    before = {k: v.clone() for k, v in env.state.items()}
    result = env.step(command)
    assert result["truncated"].all()
    final, first = result["final_obs"], result["obs"]
    # By hand: v += dt 2.2 (cmd - v), then v *= .9968, in the frame of the goal.
    ahead = torch.nn.functional.normalize((before["goal"] - before["start"])[:, :2], dim=1)
    turned = torch.stack([ahead[:, 0], ahead[:, 1], -ahead[:, 1], ahead[:, 0]], 1).view(16, 2, 2)
    vel = torch.cat([(turned @ before["vel"][:, :2, None]).squeeze(-1), before["vel"][:, 2:]], 1)
    expected = (vel + DT * 2.2 * (4 * command - 2 - vel)) * 0.9968
    torch.testing.assert_close(final["state"][:, 5:], expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(final["direction"][:, 0, :2], (before["goal"] - before["start"])[:, :2])
    assert (first["state"][:, 5:] == 0).all()
    assert torch.equal(env.state["pos"], env.state["start"])
    assert torch.equal(first["direction"][:, 0, :2], (env.state["goal"] - env.state["start"])[:, :2])
    assert torch.equal(env.state["episode"], before["episode"] + 1)
    assert (env.state["step"] == 0).all()


@every_kind_of_maps
def test_a_masked_reset_begins_episodes_inside_the_mask_and_leaves_the_rest_alone(
    make: Make, maps: dict[str, Any]
) -> None:
    options = FAST | maps | {"randomize": NOISE}
    env, twin = make(**options), make(**options)
    last, expected = fly(env, 15)[-1], fly(twin, 45)
    mask = torch.arange(16) % 3 == 0
    episodes = env.state["episode"].clone()
    result = env.reset(mask)
    assert torch.equal(env.state["episode"], episodes + mask)
    for key, value in result["obs"].items():
        assert torch.equal(value[~mask], last["obs"][key][~mask]), key
    assert (env.state["vel"][mask] == 0).all()
    after = fly(env, 30, first=15, reset=False)
    assert_same([r[~mask] for r in after], [r[~mask] for r in expected[16:]])


# ---- state -----------------------------------------------------------------------------------------------------------


@every_kind_of_maps
def test_a_saved_state_continues_bit_for_bit_here_and_in_another_env(make: Make, maps: dict[str, Any]) -> None:
    options = FAST | maps | {"randomize": dataclasses.replace(NOISE, latency_steps=4, mass=0.3)}
    options |= {"grid_map": True, "grid_size": 8}
    env = make(**options)
    fly(env, 33)
    state = env.state_dict()
    expected = fly(env, 50, first=33, reset=False)
    assert sum(int(ended(r).sum()) for r in expected) > 20
    other = make(**options)
    for target in (other, env):
        target.load_state_dict(state)
        assert_same(expected, fly(target, 50, first=33, reset=False))


def test_a_state_of_another_seed_size_or_bank_layout_is_refused_and_nothing_is_loaded(make: Make) -> None:
    env = make()
    env.reset()
    before = env.state["pos"].clone()
    for other, sentence in (
        (make(seed=4), "seed=4"),
        (make(num_envs=8), "total_envs=8"),
        (make(num_envs=8, total=16), "needs"),
        (make(num_maps=5), "maps"),
        (make(offset=16, total=32), "offset=16"),
    ):
        other.reset()
        with pytest.raises(InputError, match=sentence):
            env.load_state_dict(other.state_dict())
        assert torch.equal(env.state["pos"], before)


# ---- maps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decimation", [1, 3])
def test_a_map_never_changes_under_a_flying_drone_while_the_bank_is_refreshed(make: Make, decimation: int) -> None:
    env = make(num_envs=8, map_refresh_steps=5, max_episode_steps=30, decimation=decimation, num_maps=3)
    env.reset()
    grid, keys = env.bank.grid.numpy(), env.bank.tensors["keys"].numpy()  # views: they show what the kernels read
    seen: set[tuple[int, ...]] = set()
    before: dict[int, tuple[int, bytes, bytes]] = {}
    for t in range(120 // decimation):
        env.bank.wait()
        for i, (slot, step) in enumerate(zip(env.state["slot"].tolist(), env.state["step"].tolist(), strict=True)):
            now = (slot, keys[slot].tobytes(), grid[slot].tobytes())
            assert step == 0 or before[i] == now, f"the map of drone {i} changed in flight at step {t}"
            before[i] = now
            seen.add(tuple(keys[slot].tolist()))
        env.step(action(t, 8))
    assert len(seen) > 6


def test_fresh_maps_give_every_episode_of_every_drone_a_map_of_its_own(make: Make) -> None:
    env = make(fresh_maps=True, max_episode_steps=4, num_envs=8)
    env.reset()
    maps = [env.bank.boxes.clone()]
    for t in range(8):
        env.step(action(t, 8))
        if (t + 1) % 4 == 0:
            maps.append(env.bank.boxes.clone())
    every = torch.cat(maps).flatten(1)
    assert len(torch.unique(every, dim=0)) == 3 * 8


def test_movers_cycle_says_how_many_obstacles_each_map_has(make: Make) -> None:
    env = make(movers_cycle=[0.0, 0.5, 1.0], num_maps=6, moving_obstacles=16)
    assert env.bank.tensors["count"].tolist() == [0, 8, 16, 0, 8, 16]


# ---- flight ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamics", [Dynamics.lee, Dynamics.first_order])
def test_a_decision_of_four_steps_flies_like_four_decisions_of_one(make: Make, dynamics: Dynamics) -> None:
    coarse, fine = make(decimation=4, dynamics=dynamics), make(decimation=1, dynamics=dynamics)
    coarse.reset()
    fine.reset()
    for t in range(15):
        result = coarse.step(action(t))
        single = [fine.step(action(t)) for _ in range(4)]
        for name in ("pos", "vel", "quat"):
            assert torch.equal(coarse.state[name], fine.state[name]), name
        assert torch.equal(coarse.bank.tensors["trail"][-1], fine.bank.tensors["trail"][-1])
        for key, value in single[-1]["obs"].items():
            assert torch.equal(result["obs"][key], value), key
    assert coarse.decision_s == pytest.approx(4 * DT)


def test_a_dt_that_is_not_the_decision_is_refused(make: Make) -> None:
    env = make(decimation=2)
    env.reset()
    env.step(at_rest(16), dt=2 * DT)
    with pytest.raises(InputError, match="decimation"):
        env.step(at_rest(16), dt=DT)


def test_latency_delays_commands_by_exactly_that_many_physics_steps(make: Make) -> None:
    n, wait = 64, 3
    env = make(num_envs=n, dynamics=Dynamics.first_order, randomize=RandomizeConfig(latency_steps=5))
    env.reset()
    latency = env.state["latency"].clone()
    assert set(latency.tolist()) == {0, 1, 2, 3, 4, 5}
    moved_at = torch.full((n,), -1, dtype=torch.int32)
    stopped_at = moved_at.clone()
    forward = torch.tensor([1.0, 0.5, 0.5]).expand(n, 3)
    speeds = []
    for t in range(14):
        env.step(forward if t == wait else at_rest(n))  # a pulse of one step
        speeds.append(env.state["vel"].norm(dim=1))
        moved_at[(moved_at < 0) & (speeds[-1] > 0)] = t
        if t:
            stopped_at[(stopped_at < 0) & (speeds[-1] < speeds[-2])] = t
    assert torch.equal(moved_at, wait + latency)
    assert torch.equal(stopped_at, wait + latency + 1)


def test_without_randomisation_every_drone_is_nominal(make: Make) -> None:
    env = make()
    env.reset()
    assert (env.state["frame"] == 1.0).all()
    assert (env.state["latency"] == 0).all()


@pytest.mark.parametrize(("field", "column"), [("mass", 0), ("thrust", 1), ("damping", 2)])
@pytest.mark.parametrize("dynamics", [Dynamics.lee, Dynamics.first_order])
def test_randomised_airframes_differ_by_drone_and_episode_fly_differently_and_stay_finite(
    make: Make, dynamics: Dynamics, field: str, column: int
) -> None:
    options: dict[str, Any] = {"num_envs": 64, "dynamics": dynamics, "max_episode_steps": 25}
    env = make(randomize=RandomizeConfig(**{field: 0.3}), **options)
    plain = make(**options)
    factors = []
    results = []
    for _ in range(2):
        results += fly(env, 25, reset=not results)
        factors.append(env.state["frame"].clone())
    expected = fly(plain, 25)
    for factor in factors:
        others = factor[:, [k for k in range(3) if k != column]]
        assert (others == 1.0).all()
        assert (factor[:, column] - 1.0).abs().max() <= 0.3
        assert factor[:, column].min() < 0.8
        assert factor[:, column].max() > 1.2
    assert not torch.equal(factors[0], factors[1])
    assert not torch.equal(results[20]["obs"]["state"], expected[20]["obs"]["state"])
    for result in results:
        assert all(torch.isfinite(v).all() for v in result["obs"].values())
        assert torch.isfinite(result["reward"]).all()


def test_lidar_noise_and_dropout_have_the_size_they_were_given_and_touch_only_hits(make: Make) -> None:
    options: dict[str, Any] = {"num_envs": 64, "static_obstacles": 350, "starts": Starts.mixed, "inside_share": 1.0}
    clean = make(**options).reset()["obs"]["lidar"]
    noisy = make(randomize=RandomizeConfig(lidar_noise_m=0.1), **options).reset()["obs"]["lidar"]
    holes = make(randomize=RandomizeConfig(lidar_dropout=0.25), **options).reset()["obs"]["lidar"]
    hit = clean > 0
    assert not noisy[~hit].any()
    assert not holes[~hit].any()
    inside = (clean > 0.5) & (clean < 3.5)  # far from the clamps at 0 and at the range
    error = (noisy - clean)[inside]
    assert len(error) > 500
    assert error.std().item() == pytest.approx(0.1, rel=0.15)
    assert abs(error.mean().item()) < 0.02
    assert (holes[hit] == 0).float().mean().item() == pytest.approx(0.25, abs=0.06)
    assert torch.equal(holes[holes > 0], clean[holes > 0])


def test_state_noise_is_new_in_every_observation_and_has_the_size_it_was_given(make: Make) -> None:
    env = make(
        num_envs=64, max_episode_steps=6, randomize=RandomizeConfig(state_noise=0.2), dynamics=Dynamics.first_order
    )
    plain = make(num_envs=64, max_episode_steps=6, dynamics=Dynamics.first_order)
    noise = [
        (a[root]["state"] - b[root]["state"])[:, 5:]
        for a, b in zip(fly(env, 8), fly(plain, 8), strict=True)
        for root in ("obs", "final_obs")
        if root == "obs" or ended(a).all()
    ]
    assert len(noise) == 10  # nine observations and the last one of the first episode
    every = torch.stack(noise)
    assert every.std().item() == pytest.approx(0.2, rel=0.1)
    for a in range(10):
        for b in range(a):
            assert ((every[a] - every[b]).abs() > 1e-6).any(dim=1).all(), f"observations {b} and {a} share noise"


def test_a_heading_flies_its_direction_in_the_goal_frame_and_holds_the_goals_height(make: Make) -> None:
    n, headings = 16, 16
    env = make(action_form=ActionForm.headings, num_headings=headings, dynamics=Dynamics.first_order)
    env.reset()
    choice = torch.arange(n)
    for _ in range(20):
        result = env.step(choice)
    state = result["obs"]["state"]
    angle = torch.atan2(state[:, 6], state[:, 5])
    wanted = 2 * torch.pi * choice / headings
    gap = torch.remainder(angle - wanted + torch.pi, 2 * torch.pi) - torch.pi
    assert gap.abs().max() < 1e-3
    speed = state[:, 5:7].norm(dim=1)
    torch.testing.assert_close(speed, speed[:1].expand(n), rtol=1e-3, atol=1e-3)
    assert (torch.sign(state[:, 7]) == torch.sign(state[:, 4])).all()  # climbs towards the goal's height


def test_starts_on_edges_lie_on_the_four_edges_and_face_the_goal(make: Make) -> None:
    env = make(num_envs=64, starts=Starts.edges)
    env.reset()
    for name in ("start", "goal"):
        p = env.state[name]
        assert torch.equal(p[:, :2].abs().max(dim=1).values, torch.full((64,), 24.0))
        assert (p[:, 2] >= 0.5).all()
        assert (p[:, 2] <= 2.5).all()
        sides = {(int(x == 24), int(x == -24), int(y == 24), int(y == -24)) for x, y, _ in p.tolist()}
        assert len(sides) == 4
    aim = env.state["goal"] - env.state["start"]
    yaw = 2 * torch.atan2(env.state["quat"][:, 2], env.state["quat"][:, 3])
    torch.testing.assert_close(torch.cos(yaw - torch.atan2(aim[:, 1], aim[:, 0])), torch.ones(64))


def test_starts_in_rows_spread_over_32_m_from_north_to_south_at_2_m(make: Make) -> None:
    env = make(num_envs=9, starts=Starts.rows)
    env.reset()
    k = torch.arange(9)
    assert torch.equal(env.state["start"], torch.stack([k / 9 * 32 - 16, k * 0 + 24.0, k * 0 + 2.0], 1))
    assert torch.equal(env.state["goal"], torch.stack([k / 8 * 32 - 16, k * 0 - 24.0, k * 0 + 2.0], 1))


def test_mixed_starts_lie_inside_by_their_share_with_free_space_around_them(make: Make) -> None:
    env = make(num_envs=64, starts=Starts.mixed, inside_share=0.5, static_obstacles=350, moving_obstacles=40)
    inside = 0
    for _ in range(4):
        env.reset()
        start, slot = env.state["start"].numpy(), env.state["slot"].numpy()
        for i in np.flatnonzero(np.abs(start[:, :2]).max(1) < 23.9):
            inside += 1
            boxes = env.bank.boxes[slot[i]].numpy() * 0.1 - 20.0
            gap = np.maximum(np.maximum(boxes[:, :2] - start[i, :2], start[i, :2] - boxes[:, 2:]), 0).max(1).min()
            movers = env.bank.tensors["trail"][-1, slot[i]].numpy()[:, :2]
            assert gap >= 0.5 - 1e-4
            assert np.linalg.norm(movers - start[i, :2], axis=1).min() >= 2.0 - 1e-4
    assert inside / 256 == pytest.approx(0.5, abs=0.1)
    env = make(num_envs=64, starts=Starts.mixed, inside_share=0.0)
    env.reset()
    assert (env.state["start"][:, :2].abs().max(dim=1).values == 24).all()


# ---- occupancy grid --------------------------------------------------------------------------------------------------


def reconstruct_grid(env: NavigationEnv, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Occupancy around drone i from boxes and crowd, in double precision; and which cells are too close to call."""
    cfg, slot = env.cfg, int(env.state["slot"][i])
    pos, start, goal = (env.state[k][i].double().numpy() for k in ("pos", "start", "goal"))
    ahead = (goal - start)[:2] / np.linalg.norm((goal - start)[:2])
    left = np.array([-ahead[1], ahead[0]])
    offset = (np.arange(cfg.grid_size) + 0.5 - cfg.grid_size / 2) * cfg.grid_resolution_m
    points = pos[:2] + offset[:, None, None] * ahead + offset[None, :, None] * left
    occupied, unsure = np.zeros((2, cfg.grid_size, cfg.grid_size), dtype=bool)
    eps = 1e-4
    for box, height in zip(env.bank.boxes[slot].numpy() * 0.1 - 20.0, env.bank.heights[slot].numpy(), strict=True):
        if height > pos[2] - cfg.collision_radius_m:
            depth = np.minimum(points - box[:2], box[2:] - points).min(-1)  # metres inside the footprint
            occupied |= depth >= 0
            unsure |= np.abs(depth) < eps
    for j in range(int(env.bank.tensors["count"][slot])):
        centre = env.bank.tensors["trail"][-1, slot, j].double().numpy()
        width, cylinder = 0.25 * (j % 4 + 1), j % 8 >= 4
        if cylinder or abs(centre[2] - pos[2]) <= 0.5 + cfg.collision_radius_m:
            away = np.linalg.norm(points - centre[:2], axis=-1)
            occupied |= away <= width / 2
            unsure |= np.abs(away - width / 2) < eps
    return occupied, unsure


def test_the_grid_map_is_what_boxes_and_crowd_say(make: Make) -> None:
    env = make(
        num_envs=32, grid_map=True, grid_size=48, static_obstacles=350, moving_obstacles=80, decimation=2,
        starts=Starts.mixed, inside_share=1.0,
    )  # fmt: skip
    cells = wrong = sure = 0
    env.reset()
    for t in range(10):
        grids = env.step(action(t, 32))["obs"]["grid_map"].numpy().astype(bool)
    for i in range(32):
        expected, unsure = reconstruct_grid(env, i)
        cells += int(expected.sum())
        sure += int((~unsure).sum())
        wrong += int((grids[i, 0] != expected)[~unsure].sum())
    assert cells > 2000
    assert sure > 0.99 * 32 * 48 * 48
    assert wrong == 0


# ---- NaN guard -------------------------------------------------------------------------------------------------------


@every_kind_of_maps
def test_the_nan_guard_stops_and_its_dump_repeats_the_step(make: Make, maps: dict[str, Any], tmp_path: Path) -> None:
    options = maps | {"max_episode_steps": 30}
    env = make(nan_guard=True, nan_dump_dir=str(tmp_path / "dumps"), **options)
    twin = make(**options)
    fly(env, 12)
    fly(twin, 12)
    for e in (env, twin):
        e.state["vel"][5, 0] = float("nan")
    with pytest.raises(NumericsError, match="vel") as caught:
        env.step(action(12))
    expected = twin.step(action(12))
    assert caught.value.dump is not None
    assert Path(caught.value.dump).parent == tmp_path / "dumps"
    again = NavigationEnv.replay_dump(caught.value.dump)
    assert torch.isnan(again["obs"]["state"][5]).any()
    for key in expected.keys(True, True):
        assert torch.equal(torch.nan_to_num(again[key].double()), torch.nan_to_num(expected[key].double())), key


def test_the_nan_guard_lets_a_sound_flight_pass_unchanged(make: Make, tmp_path: Path) -> None:
    guarded = make(nan_guard=True, nan_dump_dir=str(tmp_path), **FAST)
    assert_same(fly(guarded, 30), fly(make(**FAST), 30))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_dump_is_refused(tmp_path: Path) -> None:
    torn = tmp_path / "torn.npz"
    torn.write_bytes(b"PK\x03\x04 not really")
    np.savez(tmp_path / "foreign.npz", a=np.zeros(3))
    for name in ("torn.npz", "foreign.npz", "absent.npz"):
        with pytest.raises(FormatError, match=name):
            NavigationEnv.replay_dump(tmp_path / name)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_nan_action_is_refused_naming_the_drone(make: Make) -> None:
    env = make()
    env.reset()
    bad = at_rest(16)
    bad[7, 1] = float("nan")
    with pytest.raises(InputError, match="env 7"):
        env.step(bad)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (torch.zeros(15, 3), r"\(15, 3\)"),
        (torch.zeros(16, 2), r"\(16, 3\)"),
        (torch.zeros(16, 3, dtype=torch.int64), "int64"),
        (np.zeros((16, 3), np.float32), "ndarray"),
    ],
    ids=["drones", "width", "type", "numpy"],
)
def test_an_action_of_the_wrong_form_is_refused(make: Make, bad: Any, sentence: str) -> None:
    env = make()
    env.reset()
    with pytest.raises(InputError, match=sentence):
        env.step(bad)


def test_actions_beyond_their_bounds_fly_as_the_bounds(make: Make) -> None:
    a, b = make(), make()
    a.reset()
    b.reset()
    wild = (action(0) - 0.5) * 100
    assert_same([a.step(wild)], [b.step(wild.clamp(0, 1))])


@pytest.mark.parametrize("bad", [torch.full((16,), 16), torch.full((16,), -1), torch.zeros(16)], ids=str)
def test_a_heading_that_does_not_exist_is_refused(make: Make, bad: Tensor) -> None:
    env = make(action_form=ActionForm.headings, num_headings=16)
    env.reset()
    with pytest.raises(InputError, match="15"):
        env.step(bad)


def test_impossible_sizes_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make(num_envs=0)
    with pytest.raises(InputError, match="seed is -1"):
        make(seed=-1)
    with pytest.raises(MemoryBudgetError, match=r"env\.num_maps to at most"):
        make(num_maps=2**24)
    with pytest.raises(MemoryBudgetError, match=r"env\.num_envs"):
        make(num_envs=2**24, fresh_maps=True)
    with pytest.raises(ConfigError, match=r"set env\.map_refresh_steps=0"):
        make(fresh_maps=True, map_refresh_steps=5)


def test_a_step_or_a_partial_reset_before_the_first_reset_is_refused(make: Make) -> None:
    env = make()
    with pytest.raises(InputError, match="before reset"):
        env.step(at_rest(16))
    with pytest.raises(InputError, match="first reset"):
        env.reset(torch.arange(16) < 4)
    env.reset()
    env.step(at_rest(16))


@pytest.mark.parametrize("mask", [torch.ones(15, dtype=torch.bool), torch.ones(16)], ids=["length", "type"])
def test_a_mask_of_the_wrong_form_is_refused(make: Make, mask: Tensor) -> None:
    env = make()
    env.reset()
    with pytest.raises(InputError, match="env_mask"):
        env.reset(mask)


def test_buffers_of_the_wrong_form_are_refused_by_name(make: Make) -> None:
    env = make()
    env.reset()
    out = env.make_buffers()
    out["obs"]["lidar"] = torch.zeros(16, 4, 36, 1).transpose(1, 3)
    with pytest.raises(InputError, match=r"obs\.lidar\] is not contiguous"):
        env.step(at_rest(16), out=out)
    out = env.make_buffers()
    out["reward"] = out["reward"].double()
    with pytest.raises(InputError, match=r"out\[reward\] is torch\.float64"):
        env.step(at_rest(16), out=out)
    out = env.make_buffers()
    del out["obs"]["state"]
    with pytest.raises(InputError, match=r"obs\.state"):
        env.step(at_rest(16), out=out)
    assert (env.state["step"] == 0).all()
