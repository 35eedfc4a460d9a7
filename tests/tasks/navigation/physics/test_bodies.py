"""Collisions of the drone's body against an independent reference: float64, boxes instead of cells, 500 points a path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import Collision, Dynamics, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.shapes import is_round, sizes

RADIUS, HALF_HEIGHT = 0.3, 0.1
POINTS = 500
UNSURE_M = 1e-3  # float32, and points between those of the reference


class Watched(NavigationEnv):
    """Keeps positions, slots and crashes as they were before drones began new episodes."""

    def after_advance(self, programs: Any) -> None:
        self.last = {name: self.state[name].clone() for name in ("pos", "crash", "slot")}
        super().after_advance(programs)


def make(collision: Collision, **options: Any) -> Watched:
    small: dict[str, Any] = {"num_envs": 64, "num_maps": 8, "static_obstacles": 350, "moving_obstacles": 80}
    return Watched(NavigationConfig(**(small | options), collision=collision), seed=5, num_threads=2)


def least_gaps(collision: Collision, paths: np.ndarray, half: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """The smallest gap to each of M obstacles on the paths [P, M, 3] from the drone to their centres."""
    beyond = np.maximum(np.abs(paths) - half, 0.0)
    flat = np.hypot(beyond[..., 0], beyond[..., 1])
    flat = np.where(rounded, np.maximum(np.hypot(paths[..., 0], paths[..., 1]) - half[..., 0], 0.0), flat)
    if collision is Collision.sphere:
        return (np.hypot(flat, beyond[..., 2]) - RADIUS).min(axis=0)
    return np.maximum(flat - RADIUS, np.abs(paths[..., 2]) - half[..., 2] - HALF_HEIGHT).min(axis=0)


def columns(env: NavigationEnv, slot: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres and half sizes of a map's boxes, m, from their footprints in inner cells."""
    boxes = env.bank.boxes[slot].numpy().astype(np.float64) * 0.1 - 20.0
    height = np.round(env.bank.heights[slot].numpy().astype(np.float64) / 0.05) * 0.05
    low, high = np.c_[boxes[:, :2], np.zeros(len(boxes))], np.c_[boxes[:, 2:], height]
    return (low + high) / 2, (high - low) / 2


def expected(env: Watched, i: int, was: np.ndarray, pos: np.ndarray, then: np.ndarray) -> tuple[str, float]:
    """Outcome of drone i's physics step, and the gap that decided it (its distance from 0 tells how sure it is)."""
    collision, lowest = env.cfg.collision, RADIUS if env.cfg.collision is Collision.sphere else env.cfg.min_height_m
    t = np.linspace(0.0, 1.0, POINTS)[:, None, None]
    drone = was + t[:, 0] * (pos - was)
    margin = min(pos[2] - lowest, env.cfg.max_height_m - pos[2])
    if margin < 0:
        return "out_of_bounds", margin
    slot, reach = int(env.last["slot"][i]), RADIUS + 0.5 + np.abs(pos - was).max()  # 0.5 m: more than a mover does
    centre, half = columns(env, slot)
    near = (np.abs(centre - pos) - half)[:, :2].max(axis=1) < reach  # the gap to others is far from 0
    static = least_gaps(collision, centre[near] - drone[:, None], half[near], np.zeros(near.sum(), bool))
    now = env.bank.tensors["trail"][-1, slot].double().numpy()
    kinds = env.bank.kinds.numpy()
    half = sizes(kinds).astype(np.float64) / 2
    near = (np.abs(now - pos) - half)[:, :2].max(axis=1) < reach
    kinds, half, now, then = kinds[near], half[near], now[near], then[near]
    moving = least_gaps(collision, then + t * (now - then) - drone[:, None], half, is_round(kinds))
    column, mover = static.min(initial=9.0), moving.min(initial=9.0)
    if column <= 0.0:
        return "collision_static", min(-column, margin)
    if mover <= 0.0:
        return "collision_moving", min(-mover, column, margin)
    return "running", min(column, mover, margin)


@pytest.mark.parametrize("speed", [10.0, 40.0])
@pytest.mark.parametrize("collision", [Collision.cylinder, Collision.sphere])
def test_a_collision_is_one_of_the_bodys_whole_path(collision: Collision, speed: float) -> None:
    """At 40 m/s a step is 0.64 m long: longer than columns are wide, so that only the path between two steps tells."""
    fast = {"dynamics": Dynamics.first_order, "speed_limit": speed, "max_episode_steps": 100}
    env = make(collision, **fast, starts=Starts.mixed, inside_share=1.0)
    env.reset()
    generator, seen, unsure = torch.Generator().manual_seed(2), dict.fromkeys(env.outcomes.values(), 0), 0
    for t in range(100):
        if t % 10 == 0:
            action = torch.rand(64, 3, generator=generator)
            action[:, 2] = 0.5 + (action[:, 2] - 0.5) * 2.0 / speed
        was, slots = env.state["pos"].clone(), env.state["slot"].long()
        then = env.bank.tensors["trail"][-1][slots].clone()
        env.step(action)
        crash = [env.outcomes[int(c)] for c in env.last["crash"]]
        for i in range(64):
            if crash[i] == "running" and (t + i) % 3:
                continue  # a third of the flights that go on is enough, and the reference is slow
            name, gap = expected(env, i, *(a[i].double().numpy() for a in (was, env.last["pos"], then)))
            if abs(gap) < UNSURE_M:
                unsure += 1
            else:
                assert crash[i] == name, (t, i, gap)
                seen[name] += 1
    assert unsure < 200
    assert seen["collision_static"] > 10
    assert seen["collision_moving"] > 2
    env.close()


def test_a_flat_body_skims_where_a_ball_touches_and_beams_see_nothing() -> None:
    """A drone 0.2 m over a column's top: the cylinder of 0.2 m height has 0.1 m left, the sphere of 0.3 m radius has not."""
    ended = {}
    for collision in Collision:
        env = make(collision, num_maps=1, moving_obstacles=0, dynamics=Dynamics.first_order)
        env.reset()
        centre, half = columns(env, 0)
        low = int(np.flatnonzero((half[:, 2] > 0.5) & (half[:, 2] < 1.5))[0])
        alone = np.abs(centre[:, :2] - centre[low, :2]).max(axis=1) < 2.0
        top = 2 * half[alone, 2].max()
        env.state["pos"][0] = torch.tensor([*centre[low, :2], top + 0.2])
        env.step(torch.full((64, 3), 0.5))
        ended[collision] = env.outcomes[int(env.last["crash"][0])]
        env.close()
    assert ended == {Collision.cylinder: "running", Collision.sphere: "collision_static", Collision.beams: "running"}


def test_a_sphere_may_not_touch_the_ground() -> None:
    for collision, outcome in ((Collision.sphere, "out_of_bounds"), (Collision.cylinder, "running")):
        env = make(collision, static_obstacles=0, moving_obstacles=0, dynamics=Dynamics.first_order)
        env.reset()
        env.state["pos"][:, 2] = 0.29
        env.step(torch.full((64, 3), 0.5))
        assert {env.outcomes[int(c)] for c in env.last["crash"]} == {outcome}
        env.close()


def test_a_body_that_does_not_fit_between_its_starts_and_the_ground_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"collision_radius_m=0\.6 .* lower env.collision_radius_m"):
        check_settings(NavigationConfig(collision=Collision.sphere, collision_radius_m=0.6), "env.")
