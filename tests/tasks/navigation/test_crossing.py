"""The crossing world: from one side of the forest to the opposite one, and no way round."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.envs.checker import check_tensor_env
from fledge.evaluation.episodes import evaluate
from fledge.tasks.navigation.config import Dynamics, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.metrics import CLASSES, side_of
from fledge.tasks.navigation.physics.terrain import CELLS, HEIGHT_STEP, SOLID
from fledge.tasks.navigation.pilots import GapPilot, StraightPilot
from fledge.tasks.navigation.task import NavigationTask

TASK = NavigationTask()
CFG = NavigationConfig(
    num_envs=64, num_maps=4, static_obstacles=60, moving_obstacles=8, starts=Starts.crossing, walls=True, decimation=4
)


@pytest.fixture
def env() -> Iterator[NavigationEnv]:
    env = NavigationEnv(CFG, seed=5, num_threads=1)
    env.reset()
    yield env
    env.close()


def test_starts_and_goals_face_each_other_across_the_open_axis_of_their_map(env: NavigationEnv) -> None:
    start, goal, slot = (env.state[name] for name in ("start", "goal", "slot"))
    sides = side_of(start)
    assert set(sides.tolist()) == {0, 1, 2, 3}  # all four directions
    assert (side_of(goal) == (sides + 2) % 4).all()
    along_y = sides % 2 == 1
    for point in (start, goal):
        across = torch.where(along_y, point[:, 0], point[:, 1]).abs()
        assert (torch.where(along_y, point[:, 1], point[:, 0]).abs() == 24.0).all()
        assert across.max() <= 19.4
        assert across.max() > 17.0  # anywhere along the side
        assert ((point[:, 2] >= 0.5) & (point[:, 2] <= 2.5)).all()
    # a map has one open axis, and both kinds of maps are there
    axes = {int(s): set(along_y[slot == s].tolist()) for s in slot.unique()}
    assert all(len(kinds) == 1 for kinds in axes.values())
    assert len(set.union(*axes.values())) == 2


def test_walls_stand_from_border_to_border_just_outside_the_forest_and_higher_than_anyone_flies(
    env: NavigationEnv,
) -> None:
    sides, slot = side_of(env.state["start"]), env.state["slot"]
    for s in slot.unique().tolist():
        cells = env.bank.grid[s].numpy().reshape(CELLS, CELLS).astype(np.int64)
        if int(sides[slot == s][0]) % 2 == 0:  # crossed along x: walls at y = ±20
            cells = cells.T
        for rows in (slice(47, 50), slice(450, 453)):  # x in [-20.3, -20] and [20, 20.3]
            assert (cells[rows] >= SOLID).all()
            assert ((cells[rows] - SOLID) * HEIGHT_STEP >= env.cfg.max_height_m + 1.0).all()
        assert (cells[:47] < SOLID).all()
        assert (cells[453:] < SOLID).all()
        assert (cells[:, :50] >= SOLID).sum() == (cells[:, 450:] >= SOLID).sum() == 6 * 50  # the open sides are open


class Sideways(BaseAgent):
    """Flies off along one axis of the goal frame."""

    observes = ("state",)

    def __init__(self, *action: float) -> None:
        super().__init__()
        self.action = torch.tensor(action)

    def act(self, obs: dict[str, torch.Tensor], deterministic: bool = True) -> torch.Tensor:
        return self.action.expand(len(obs["state"]), 3)


def test_who_flies_to_the_side_meets_a_wall_and_who_flies_backwards_leaves_the_map() -> None:
    bare = dataclasses.replace(CFG, static_obstacles=0, moving_obstacles=0, speed_limit=4.0)
    level = 0.5
    for side in (0.0, 1.0):
        result = evaluate(Sideways(0.5, side, level), TASK, bare, 32)
        assert result.counts["collision_static"] >= 8
        assert (
            result.counts["collision_static"] + result.counts["out_of_bounds"] == 32
        )  # oblique ones leave at the back
    result = evaluate(Sideways(0.0, 0.5, level), TASK, bare, 32)
    assert result.counts["out_of_bounds"] == 32
    assert (result.lengths_s < 3.0).all()  # one metre behind the start
    result = evaluate(Sideways(0.0, 0.5, level), TASK, dataclasses.replace(bare, walls=False), 32)
    assert result.counts["timeout"] == 32  # without walls the old rule holds: fly where you like


def test_the_clock_gives_35_seconds_for_48_metres_and_more_for_more(env: NavigationEnv) -> None:
    steps = 48
    cfg = dataclasses.replace(CFG, max_episode_steps=steps, static_obstacles=0, moving_obstacles=0, decimation=1)
    env = NavigationEnv(cfg, seed=5, num_threads=1)
    env.reset()
    way = env.state["goal"] - env.state["start"]
    distance = way[:, :2].norm(dim=-1)
    expected = (steps * distance / 48.0).floor().int()
    assert expected.min() >= 48
    assert expected.max() > 54
    hover = torch.full((64, 3), 0.5)
    length = torch.zeros(64, dtype=torch.int32)
    for _ in range(cfg.longest_episode_steps):
        result = env.step(hover)
        length = torch.where((length == 0) & result["truncated"], result["episode_length"], length)
    assert (length - expected).abs().max() <= 1  # rounding of the distance
    assert cfg.longest_episode_steps == math.ceil(steps * math.hypot(48.0, 38.8) / 48.0)
    assert (length <= cfg.longest_episode_steps).all()
    env.close()


def test_the_straight_pilot_crosses_an_empty_arena_in_time_at_any_angle() -> None:
    bare = dataclasses.replace(CFG, static_obstacles=0, moving_obstacles=0)
    result = evaluate(StraightPilot(), TASK, bare, 64, seed=3)
    assert result.counts["success"] == 64


@pytest.mark.parametrize("maps", [{}, {"map_refresh_steps": 7}, {"fresh_maps": True}], ids=["bank", "refresh", "fresh"])
def test_the_checker_passes(maps: dict[str, object]) -> None:
    def make(limit: int, num_envs: int, seed: int) -> NavigationEnv:
        fast = {"dynamics": Dynamics.first_order, "speed_limit": 60.0, "max_episode_steps": limit}
        cfg = dataclasses.replace(CFG, num_envs=num_envs, static_obstacles=20, decimation=1, **fast, **maps)
        return NavigationEnv(cfg, seed=seed, num_threads=1)

    summary = check_tensor_env(functools.partial(make, 20), 60, make_longer=functools.partial(make, 80))
    assert summary.terminated > 0
    assert summary.truncated > 0


def test_a_crossing_judges_crossing_policies_too() -> None:
    assert TASK.evaluation(CFG).starts is Starts.crossing
    assert TASK.evaluation(dataclasses.replace(CFG, starts=Starts.mixed, walls=False)).starts is Starts.edges


def test_walls_without_crossing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.starts=crossing"):
        check_settings(NavigationConfig(walls=True), "env.")


# ---- what an evaluation tells ----------------------------------------------------------------------------------------


def test_flights_are_told_apart_by_the_sides_of_start_and_goal() -> None:
    cfg = dataclasses.replace(CFG, starts=Starts.edges, walls=False, num_envs=256)
    env = NavigationEnv(cfg, seed=1, num_threads=1)
    env.reset()
    kinds = [CLASSES[k] for k in TASK.metrics.classify(env).tolist()]
    for kind, start, goal in zip(kinds, env.state["start"].tolist(), env.state["goal"].tolist(), strict=True):
        # by hand: shared coordinate of 24 m, opposite signs of it, or neither
        shared = [a == b and abs(a) == 24.0 for a, b in zip(start[:2], goal[:2], strict=True)]
        facing = [a == -b and abs(a) == 24.0 for a, b in zip(start[:2], goal[:2], strict=True)]
        assert kind == ("same" if any(shared) else "opposite" if any(facing) else "adjacent")
    assert kinds.count("same") / 256 == pytest.approx(0.25, abs=0.09)
    assert kinds.count("adjacent") / 256 == pytest.approx(0.5, abs=0.1)
    env.close()


def test_a_crossing_without_walls_is_not_called_one() -> None:
    env = NavigationEnv(dataclasses.replace(CFG, walls=False), seed=1, num_threads=1)
    env.reset()
    assert {CLASSES[k] for k in TASK.metrics.classify(env).tolist()} == {"opposite"}
    env.close()


def test_classes_add_up_to_the_whole_and_the_straight_pilot_shows_the_weak_one() -> None:
    forest = NavigationConfig(num_envs=128, num_maps=4, moving_obstacles=0, decimation=5)
    result = evaluate(StraightPilot(), TASK, forest, 200).as_dict()
    classes = result["by_class"]
    assert list(classes) == ["opposite", "adjacent", "same"]  # the hardest first
    assert sum(part["episodes"] for part in classes.values()) == 200
    won = sum(part["success"] * part["episodes"] for part in classes.values())
    assert won == pytest.approx(result["success"] * 200, abs=0.05)
    assert classes["same"]["success"] == 1.0
    assert classes["opposite"]["success"] < 0.2


def test_figures_of_straight_flight_through_nothing_are_what_geometry_says() -> None:
    bare = dataclasses.replace(CFG, static_obstacles=0, moving_obstacles=0, lidar_elevations_deg=[0.0, 10.0])
    figures = evaluate(StraightPilot(), TASK, bare, 64, seed=3).as_dict()
    assert figures["detour"] == pytest.approx(1.0, abs=0.03)
    assert figures["outside_share"] == pytest.approx(8 / 48, abs=0.05)  # slow at both ends
    assert figures["control_effort"] < 0.2  # only at the end, where it slows down
    assert figures["clearance"] > 3.0  # walls are met only near the sides
    assert 1.6 < figures["mean_speed"] < 1.9


def test_control_effort_is_the_change_of_the_command_per_second() -> None:
    class Wobble(BaseAgent):
        observes = ("state",)
        sign = 1.0

        def act(self, obs: dict[str, torch.Tensor], deterministic: bool = True) -> torch.Tensor:
            self.sign = -self.sign
            return torch.tensor([0.5 + 0.25 * self.sign, 0.5, 0.5]).expand(len(obs["state"]), 3)

    cfg = dataclasses.replace(CFG, static_obstacles=0, moving_obstacles=0, max_episode_steps=200)
    figures = evaluate(Wobble(), TASK, cfg, 16).as_dict()
    assert figures["control_effort"] == pytest.approx(2.0 / (4 * 0.016), rel=1e-3)  # ±1 m/s at every decision


def test_every_episode_is_the_same_for_every_policy_also_beyond_the_first_wave() -> None:
    """Start, goal, map and movers of episode k, seen at its first decision, whoever flies and however long others took."""

    class Watch(BaseAgent):
        observes = ("state", "lidar", "dynamic_obstacle")

        def __init__(self, pilot: BaseAgent) -> None:
            super().__init__()
            self.pilot, self.first, self.fresh = pilot, [], True

        def reset(self, env_mask: torch.Tensor | None = None) -> None:
            self.fresh = env_mask is None

        def act(self, obs: dict[str, torch.Tensor], deterministic: bool = True) -> torch.Tensor:
            if self.fresh:
                self.first.append({name: obs[name].clone() for name in self.observes})
                self.fresh = False
            return self.pilot.act(obs)

    cfg = dataclasses.replace(CFG, num_envs=16, starts=Starts.edges, walls=False, max_episode_steps=300)
    watched = [Watch(StraightPilot()), Watch(GapPilot())]
    results = [evaluate(agent, TASK, cfg, 40) for agent in watched]
    assert len(watched[0].first) == 3  # waves of 16, 16 and 8
    for a, b in zip(watched[0].first, watched[1].first, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(watched[0].first[0]["state"], watched[0].first[1]["state"])
    assert results[0].kinds.tolist() == results[1].kinds.tolist()


def test_a_collision_with_a_mover_is_drawn_where_it_happened() -> None:
    cfg = NavigationConfig(num_envs=64, num_maps=2, static_obstacles=0, moving_obstacles=80, decimation=5)
    result = evaluate(StraightPilot(), TASK, cfg, 64, record=64)
    hit = [track for track in result.trajectories if track.outcome == "collision_moving"]
    assert hit
    for track in hit:
        x, y, _, width = track.frames["mover"][-1]
        away = math.hypot(x - track.frames["pos"][-1, 0], y - track.frames["pos"][-1, 1])
        assert away < width / 2 + 0.3 + 0.4  # within what both fly in one decision
    axes = TASK.view.draw(result.trajectories).axes[0]
    for track in result.trajectories:
        if track.scene["map"] == 0:
            assert np.abs(track.frames["pos"][:, :2]).max() < axes.get_xlim()[1]
