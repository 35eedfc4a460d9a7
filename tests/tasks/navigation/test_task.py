"""The navigation task: what the rest of the house may ask about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from fledge.envs.placement import EnvPlacement
from fledge.tasks.navigation.config import CurriculumConfig, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.task import NavigationTask

TASK = NavigationTask()
CFG = NavigationConfig(num_envs=4, num_maps=2, static_obstacles=20, moving_obstacles=16)


@pytest.fixture
def env() -> Iterator[NavigationEnv]:
    env = TASK.make_env(CFG, EnvPlacement(seed=1, num_threads=1))
    env.reset()
    yield env
    env.close()


# ---- curriculum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "ramp", "counts"),
    [
        # at progress 0, 0.1, 0.25, 0.5, 0.75, 1
        (0.25, 0.5, [4, 6, 10, 16, 16, 16]),  # 0.25 + 0.75 * 0.1 / 0.5 = 0.4 of 16, rounded
        (0.0, 1.0, [0, 2, 4, 8, 12, 16]),
        (0.5, 0.25, [8, 11, 16, 16, 16, 16]),
        (1.0, 0.5, [16] * 6),
        (0.25, 0.0, [16] * 6),  # no ramp: all from the start
        (0.25, 2.0, [4, 5, 6, 7, 8, 10]),  # never all
    ],
)
def test_movers_grow_from_a_share_to_all_over_the_ramp(
    env: NavigationEnv, start: float, ramp: float, counts: list[int]
) -> None:
    curriculum = CurriculumConfig(movers_start=start, ramp=ramp)
    for progress, count in zip((0.0, 0.1, 0.25, 0.5, 0.75, 1.0), counts, strict=True):
        TASK.curriculum.set_progress(env, curriculum, progress)
        assert env.bank.tensors["count"].tolist() == [count, count]


def test_a_resumed_run_may_go_back_to_fewer(env: NavigationEnv) -> None:
    for progress, count in ((1.0, 16), (0.0, 4), (0.5, 16)):
        TASK.curriculum.set_progress(env, CurriculumConfig(movers_start=0.25, ramp=0.5), progress)
        assert env.bank.tensors["count"].tolist() == [count, count]


def test_the_share_is_of_what_each_map_has() -> None:
    env = TASK.make_env(
        NavigationConfig(num_envs=4, num_maps=2, moving_obstacles=16, movers_cycle=[0.5, 1.0]), EnvPlacement(seed=1)
    )
    TASK.curriculum.set_progress(env, CurriculumConfig(movers_start=0.25, ramp=0.5), 0.0)
    assert env.bank.tensors["count"].tolist() == [2, 4]
    env.close()


def test_drones_meet_only_the_movers_that_the_curriculum_shows() -> None:
    def met(progress: float) -> bool:
        env = TASK.make_env(replace(CFG, moving_obstacles=400), EnvPlacement(seed=1, num_threads=1))
        TASK.curriculum.set_progress(env, CurriculumConfig(movers_start=0.0, ramp=1.0), progress)
        found = bool(env.reset()["obs"]["dynamic_obstacle"].any())
        for _ in range(60):
            found |= bool(env.step(torch.tensor([0.9, 0.5, 0.5]).expand(4, 3))["obs"]["dynamic_obstacle"].any())
        env.close()
        return found

    assert not met(0.0)
    assert met(1.0)


# ---- evaluation ------------------------------------------------------------------------------------------------------


def test_policies_are_judged_with_all_movers_on_all_maps_from_the_edges() -> None:
    trained = NavigationConfig(
        num_envs=7, movers_cycle=[0.0, 1.0], starts=Starts.mixed, success_ends_episode=False, map_refresh_steps=50
    )
    judged = TASK.evaluation(trained)
    changed = {key: value for key, value in asdict(judged).items() if value != asdict(trained)[key]}
    assert changed == {
        "num_envs": 1024,
        "movers_cycle": [1.0],
        "starts": Starts.edges,
        "success_ends_episode": True,
        "map_refresh_steps": 0,
    }


def test_the_held_out_world_shares_no_map_with_any_rank_of_training() -> None:
    def maps(**place: Any) -> list[torch.Tensor]:
        env = TASK.make_env(CFG, EnvPlacement(seed=1, num_threads=1, **place))
        try:
            return list(env.bank.boxes[: env.bank.active].clone())
        finally:
            env.close()

    held_out = maps(held_out=True)
    for rank in (0, 1, 63):
        assert not any(torch.equal(a, b) for a in held_out for b in maps(rank=rank))
    assert all(torch.equal(a, b) for a, b in zip(held_out, maps(held_out=True, rank=5), strict=True))


def test_policies_are_evaluated_on_the_same_maps_however_many_they_were_trained_on() -> None:
    one, many = (TASK.evaluation(NavigationConfig(num_maps=count)) for count in (1, 200))
    assert one == many
    assert one.num_maps == 64
