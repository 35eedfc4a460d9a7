"""Movers as the detector reports them: each fault by hand, by its statistics, or against a plain NumPy reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.terrain import SOLID
from tests.tasks.navigation.perception.hand import at_rest, look, next_frame, rows, seen, stage

Make = Callable[..., NavigationEnv]
AROUND = [(2.0, 0.0), (0.0, 2.0), (-2.0, 0.0), (0.0, -2.0), (1.5, 1.5)]
BOX, PILLAR = 1, 5  # half a metre wide
EMPTY: dict[str, Any] = {"static_obstacles": 0, "moving_obstacles": 8, "num_maps": 1}


def flat(obs: dict[str, torch.Tensor]) -> torch.Tensor:
    return rows(obs)[..., 3]


# ---- seen or not ---------------------------------------------------------------------------------------------------


def test_movers_are_missed_in_a_frame_as_often_as_set_and_anew_in_every_frame(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 256}, miss_rate=0.3)
    stage(env, AROUND, [BOX] * 5)
    found = []
    for _ in range(40):
        next_frame(env)
        found.append(seen(look(env)).sum(dim=1))
    count = torch.stack(found).double()  # [frames, N] binomial(5, 0.7)
    assert count.mean().item() == pytest.approx(3.5, abs=0.04)
    assert count.var().item() == pytest.approx(5 * 0.7 * 0.3, rel=0.05)
    assert np.corrcoef(count[:-1].flatten(), count[1:].flatten())[0, 1] == pytest.approx(0.0, abs=0.03)


def test_a_frame_of_the_detector_holds_for_its_period(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 64}, miss_rate=0.5, mover_period_s=5 * 0.016)
    stage(env, AROUND, [BOX] * 5)
    env.fault_state["trail"].copy_(env.bank.tensors["trail"][-1].expand_as(env.fault_state["trail"]))
    frames = []
    for _ in range(20):  # clocks 1000 to 1019: frames at 1000, 1005, ...
        frames.append(flat(look(env)))
        next_frame(env)
    for k in range(1, 20):
        assert torch.equal(frames[k], frames[k - 1]) == (k % 5 > 0), k


def test_a_mover_outside_the_field_of_view_is_not_seen_whatever_the_drones_heading(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 2}, view_deg=87.0)
    angles = np.radians([0.0, 40.0, -43.0, 44.0, 180.0])
    stage(env, [(float(2 * np.cos(a)), float(2 * np.sin(a))) for a in angles], [PILLAR] * 5)
    half = np.radians(170.0) / 2
    env.state["quat"][1] = torch.tensor([0.0, 0.0, np.sin(half), np.cos(half)])  # heading 170 degrees
    obs = look(env)
    assert seen(obs).sum(dim=1).tolist() == [3, 1]
    assert rows(obs)[1, 0, :2].tolist() == pytest.approx([-1.0, 0.0], abs=1e-5)


def put_column(env: NavigationEnv, x: float, y: float, height: float) -> None:
    """Put a column of 0.3 x 0.3 m around a point of every map, and forget its distance field."""
    cells = env.bank.grid.view(-1, 500, 500)
    cells.fill_(1)
    ix, iy = int((x + 25.0) * 10), int((y + 25.0) * 10)
    cells[:, ix - 1 : ix + 2, iy - 1 : iy + 2] = SOLID + round(height / 0.05)


@pytest.mark.parametrize("kind", [BOX, PILLAR])
def test_a_mover_behind_a_column_is_hidden_and_one_beside_it_or_behind_a_lower_one_is_not(
    make: Make, kind: int
) -> None:
    env = make(EMPTY, occlusion=True)
    plain = make(EMPTY, view_deg=359.0)
    for height, expected in ((4.0, 1), (1.0, 2)):  # drone and mover at 2 m
        for each, count in ((env, expected), (plain, 2)):
            stage(each, [(3.0, 0.05), (3.0, 1.5)], [kind, kind])
            put_column(each, 1.5, 0.05, height)
            obs = look(each)
            assert seen(obs).sum(dim=1).tolist() == [count] * 16, height
    assert rows(look(env))[0, 0, 3].item() == pytest.approx(3.0, abs=1e-2)
    stage(env, [(1.2, 0.05)], [kind])  # in front of it
    put_column(env, 1.8, 0.05, 4.0)
    assert seen(look(env)).sum(dim=1).tolist() == [1] * 16


def is_hidden(grid: np.ndarray, pos: np.ndarray, centre: np.ndarray, j: int) -> bool:
    """Plain reference: walk along the line of sight to mover j in steps of 4 mm, until the mover begins."""
    width, half = 0.25 * (j % 4 + 1), 2.5 if j % 8 >= 4 else 0.5
    aim = np.append(centre[:2], np.clip(pos[2], centre[2] - half, centre[2] + half))
    length = np.linalg.norm(aim - pos)
    points = pos + np.arange(0.0, max(length - width / 2, 0.0), 0.004)[:, None] / length * (aim - pos)
    cells = np.floor((points[:, :2] + 25.0) * 10).astype(int)
    value = grid[cells[:, 0], cells[:, 1]].astype(int)
    return bool(((value >= SOLID) & ((value - SOLID) * 0.05 > points[:, 2])).any())


def test_occlusion_in_a_forest_agrees_with_a_walk_along_the_line_of_sight(make: Make) -> None:
    options = {"num_envs": 256, "static_obstacles": 350, "moving_obstacles": 80, "starts": Starts.mixed}
    env = make({**options, "inside_share": 1.0}, occlusion=True)
    obs = dict(env.reset()["obs"].items())
    grid = env.bank.grid.numpy().reshape(-1, 500, 500)
    trail, slots = env.bank.tensors["trail"][-1].double().numpy(), env.state["slot"].numpy()
    wrong = hidden = 0
    for i, pos in enumerate(env.state["pos"].double().numpy()):
        crowd = trail[slots[i]]
        near = np.hypot(*(crowd - pos)[:, :2].T)
        order = [j for j in near.argsort() if near[j] <= 4.0]
        visible = [j for j in order if not is_hidden(grid[slots[i]], pos, crowd[j], int(j))]
        hidden += len(order) - len(visible)
        found = flat(obs)[i][seen(obs)[i]].double().numpy()
        wrong += len(found) != len(visible[:5]) or not np.allclose(found, near[visible[:5]], atol=1e-4)
    assert hidden > 100
    assert wrong <= 4  # lines that graze a corner


# ---- late and noisy ------------------------------------------------------------------------------------------------


class Memory:
    """Plain NumPy reference of delayed detections: every position of every mover at every clock, by map slot."""

    def __init__(self, env: NavigationEnv) -> None:
        self.env, self.places = env, {}
        self.note()

    def note(self) -> None:
        """Take the positions after each physics step of the last decision."""
        env = self.env
        clock, trail = int(env.bank.tensors["clock"]), env.bank.tensors["trail"].double().numpy()
        for k in range(env.cfg.decimation):
            self.places[clock - env.cfg.decimation + 1 + k] = trail[k].copy()

    def rows(self, i: int, clock: int) -> list[tuple[float, np.ndarray]]:
        """Distance and velocity of the movers that drone i sees in a frame of positions at `clock`, nearest first."""
        env = self.env
        slot, pos = int(env.state["slot"][i]), env.state["pos"][i].double().numpy()
        born, origin = int(env.bank.tensors["born"][slot]), env.bank.tensors["origin"][slot].double().numpy()

        def at(t: int) -> np.ndarray:
            return origin if t <= born else self.places[t][slot]

        place = at(clock)
        vel = (place - at(clock - 1)) / env.cfg.dt_s if clock > born else np.zeros_like(place)
        if clock == int(env.bank.tensors["clock"]):
            place, vel = (
                env.bank.tensors["trail"][-1][slot].double().numpy(),
                env.bank.tensors["vel"][slot].double().numpy(),
            )
        away = np.hypot(*(place - pos)[:, :2].T)
        return [(away[j], vel[j]) for j in away.argsort() if away[j] <= env.cfg.lidar_range_m][:5]


@pytest.mark.parametrize("decimation", [1, 3])
@pytest.mark.parametrize("maps", [{}, {"map_refresh_steps": 7}, {"fresh_maps": True}], ids=["lasting", "new", "fresh"])
@pytest.mark.parametrize(("period", "delay"), [(0, 7), (5, 0), (4, 10)])
def test_movers_are_seen_where_they_were_at_the_last_frame_less_its_delay(
    make: Make, decimation: int, maps: dict[str, Any], period: int, delay: int
) -> None:
    options = {"starts": Starts.mixed, "inside_share": 1.0, "moving_obstacles": 80, "static_obstacles": 0}
    options |= {"decimation": decimation, "max_episode_steps": 24, **maps}
    env = make(options, mover_period_s=period * 0.016, mover_delay_s=delay * 0.016)
    env.reset()
    memory, compared = Memory(env), 0
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        obs = dict(env.step(torch.rand(16, 3, generator=generator))["obs"].items())
        env.bank.wait()
        memory.note()
        clock = int(env.bank.tensors["clock"])
        frame = clock // period * period if period else clock
        x_axis = (env.state["goal"] - env.state["start"])[:, :2].double().numpy()
        x_axis /= np.linalg.norm(x_axis, axis=1, keepdims=True)
        for i in range(16):
            expected = memory.rows(i, frame - delay)
            there = rows(obs)[i][seen(obs)[i]].double().numpy()
            assert len(there) == len(expected)
            if not len(there):
                continue
            np.testing.assert_allclose(there[:, 3], [away for away, _ in expected], atol=2e-4)
            vel = np.array([v for _, v in expected])
            (cx, cy), goal_vel = x_axis[i], there[:, 5:8]
            turned = np.stack([cx * vel[:, 0] + cy * vel[:, 1], -cy * vel[:, 0] + cx * vel[:, 1], vel[:, 2]], axis=1)
            np.testing.assert_allclose(goal_vel, turned, atol=2e-3)
            compared += len(there)
    assert compared > 300


def test_errors_of_position_and_velocity_grow_in_proportion_to_distance(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 2048}, position_noise=0.05, velocity_noise=0.1)
    found = {}
    for away, kind in ((1.0, BOX), (3.0, BOX), (3.0, PILLAR)):
        stage(env, [(away, 0.0)], [kind])
        env.bank.tensors["vel"][:, 0] = torch.tensor([0.5, -0.25, 0.0])
        row = rows(look(env))[:, 0].double()
        assert (row[:, 3] > 0).all()
        length = row[:, 3] / row[:, :2].norm(dim=1)
        place, vel = row[:, :3] * length[:, None], row[:, 5:8]
        np.testing.assert_allclose(place.mean(dim=0), [away, 0.0, 0.0], atol=0.02)
        np.testing.assert_allclose(vel.mean(dim=0), [0.5, -0.25, 0.0], atol=0.03)
        up = 0.0 if kind == PILLAR else 1.0  # heights of cylinders are not observed
        np.testing.assert_allclose(place.std(dim=0), 0.05 * away * np.array([1, 1, up]), rtol=0.06, atol=1e-6)
        np.testing.assert_allclose(vel.std(dim=0), 0.1 * away * np.array([1, 1, up]), rtol=0.06, atol=1e-6)
        found[away, kind] = place
    joint = np.corrcoef(np.concatenate([place.numpy().T, vel.numpy().T])[[0, 1, 3, 4]])
    np.testing.assert_allclose(joint, np.eye(4), atol=0.08)


def test_widths_are_misjudged_as_often_as_the_normal_distribution_says_and_for_the_whole_episode(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 4096}, size_error=0.3)
    stage(env, [(2.0, 0.0)], [2])  # 0.75 m: class 2
    classes = rows(look(env))[:, 0, 8]
    edges = (np.array([1.5, 2.5, 3.5]) / 4 / 0.75 - 1) / 0.3  # between the classes 0, 1, 2, 3
    expected = np.diff([0.0, *(0.5 + 0.5 * math.erf(edge / math.sqrt(2)) for edge in edges), 1.0])
    np.testing.assert_allclose([(classes == k).double().mean().item() for k in range(4)], expected, atol=0.025)
    next_frame(env)
    assert torch.equal(rows(look(env))[:, 0, 8], classes)
    env.state["episode"].add_(1)
    assert not torch.equal(rows(look(env))[:, 0, 8], classes)


def test_vary_draws_the_level_of_every_episode_and_never_more_than_the_setting(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 512}, miss_rate=0.8, vary=0.5)
    stage(env, AROUND, [BOX] * 5)
    missed = []
    for _ in range(80):
        next_frame(env)
        missed.append(5.0 - seen(look(env)).sum(dim=1))
    rate = (torch.stack(missed).mean(dim=0) / 5).double().numpy()  # of each drone, from 400 movers
    assert rate.mean() == pytest.approx(0.6, abs=0.02)
    spread = 0.4 / np.sqrt(12)  # uniform from 0.4 to 0.8
    assert rate.std() == pytest.approx(np.hypot(spread, np.sqrt(0.24 / 400)), rel=0.08)
    assert 0.30 < rate.min() < 0.45
    assert 0.75 < rate.max() < 0.90


# ---- tracks and ghosts ---------------------------------------------------------------------------------------------


def runs(on: np.ndarray) -> np.ndarray:
    """Lengths of all complete runs of 1 in the columns of [T, n]."""
    lengths = []
    for column in on.T:
        edges = np.flatnonzero(np.diff(column.astype(int)))
        starts = [e for e in edges if column[e + 1]]
        lengths += [int(edges[edges > s][0] - s) for s in starts if (edges > s).any()]
    return np.array(lengths)


def film(env: NavigationEnv, name: str, steps: int) -> np.ndarray:
    """A state of the faults after each step, [T, ...]."""
    env.reset()
    found = []
    for _ in range(steps):
        env.step(at_rest(env.num_envs))
        found.append(env.fault_state[name].clone())
    return torch.stack(found).numpy()


def test_tracks_are_lost_at_the_set_rate_and_for_the_set_time(make: Make) -> None:
    options = {**EMPTY, "num_envs": 64, "moving_obstacles": 40, "decimation": 3}
    env = make(options, lose_rate=0.5, lose_s=0.5)
    lost = film(env, "lost", 400).reshape(400, -1)
    lose, find = 1 - np.exp(-0.5 * 0.048), 1 - np.exp(-0.048 / 0.5)
    assert lost[100:].mean() == pytest.approx(lose / (lose + find), abs=0.01)
    assert (lost[1:] > lost[:-1]).sum() / (lost[:-1] == 0).sum() == pytest.approx(lose, rel=0.05)
    assert runs(lost[:, :500]).mean() * 0.048 == pytest.approx(0.048 / find, rel=0.06)
    assert not film(env, "lost", 1)[0].mean() > 2 * lose  # an episode begins with all tracks


def test_a_lost_mover_is_not_seen_by_the_drone_that_lost_it(make: Make) -> None:
    env = make(EMPTY, lose_rate=1e-6)
    stage(env, AROUND, [BOX] * 5)
    env.fault_state["lost"][3, 1] = 1
    counts = seen(look(env)).sum(dim=1).tolist()
    assert counts == [5, 5, 5, 4] + [5] * 12


def test_ghosts_are_as_many_and_live_as_long_as_set_and_look_like_movers(make: Make) -> None:
    env = make({**EMPTY, "num_envs": 256, "moving_obstacles": 0, "decimation": 3}, ghosts=0.5, ghost_s=0.4)
    first = dict(env.reset()["obs"].items())
    assert seen(first).sum(dim=1).double().mean().item() == pytest.approx(0.5, abs=0.15)  # from the first frame on
    pos = env.state["pos"].clone()
    away = (env.fault_state["ghost_pos"] - pos[:, None])[..., :2].norm(dim=-1)[env.fault_state["ghost_kind"] >= 0]
    assert away.min() >= 0.5
    assert away.max() <= 4.0
    assert (away**2).mean().item() == pytest.approx((16 + 0.25) / 2, rel=0.15)  # evenly over the ring
    there = film(env, "ghost_kind", 400).reshape(400, -1) >= 0
    assert 4 * there.mean() == pytest.approx(0.5, rel=0.05)
    assert runs(there).mean() * 0.048 == pytest.approx(0.048 / (1 - np.exp(-0.048 / 0.4)), rel=0.05)
    obs = look(env)
    speed = rows(obs)[..., 5:8].norm(dim=-1)[seen(obs)]
    assert speed.max() <= 1.5
    assert speed.max() > 1.0
    kinds = rows(obs)[..., 8:][seen(obs)]
    assert set(kinds[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert set(kinds[:, 1].tolist()) == {0.0, 1.0}


def test_a_ghost_moves_by_its_velocity_and_takes_a_row_by_its_distance(make: Make) -> None:
    env = make({**EMPTY, "decimation": 2}, ghosts=1e-6, ghost_s=1000.0)
    stage(env, [(1.0, 0.0), (3.0, 0.0)], [PILLAR, PILLAR])
    env.fault_state["ghost_kind"][:, 0] = 3
    env.fault_state["ghost_pos"][:, 0] = torch.tensor([0.0, 2.0, 2.25])
    env.fault_state["ghost_vel"][:, 0] = torch.tensor([0.0, -1.0, 0.0])
    row = rows(look(env))[0]
    assert row[:3, 3].tolist() == pytest.approx([1.0, 2.0, 3.0])
    assert row[1, [4, 5, 6, 7, 8, 9]].tolist() == pytest.approx([0.25, 0.0, -1.0, 0.0, 3.0, 1.0])
    env.step(at_rest(16))
    assert env.fault_state["ghost_pos"][0, 0].tolist() == pytest.approx([0.0, 2.0 - 0.032, 2.25])
