"""Resuming with other settings: what goes on, what starts anew and is said, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.train.config import TrainConfig
from fledge.train.ranks import Ranks
from fledge.train.run import Run

SMALL = [
    "env.num_envs=8",
    "env.num_maps=2",
    "env.static_obstacles=20",
    "env.moving_obstacles=0",
    "ppo.rollout_steps=8",
    "ppo.minibatch=64",
    "policy.hidden=[16]",
    "replay.steps=8",
    "replay.segment=8",
    "replay.warm_up=64",
    "replay.batch=32",
    "replay.updates=1",
    "replay.size=1000",
    "total_frames=640",
]


@contextmanager
def running(*words: str) -> Iterator[Run]:
    run = Run(build_config(TrainConfig, [], [*SMALL, *words]), Ranks())
    try:
        yield run
    finally:
        run.close()


def fly(run: Run, iterations: int) -> None:
    for _ in range(iterations):
        run.learn(run.collect())


def saved(*words: str) -> dict[str, object]:
    with running(*words) as run:
        fly(run, 6)
        return run.state_dict()


@pytest.mark.parametrize(("steps", "left"), [(4, 8), (16, 2), (32, 1)])
def test_other_rollouts_end_after_the_same_decisions(steps: int, left: int) -> None:
    state = saved()
    with running(f"ppo.rollout_steps={steps}") as run:
        assert run.load_state_dict(state) == "with changed ppo.rollout_steps"
        assert run.iterations_left == left  # 384 of 640 are done
        before = run.progress
        assert before == pytest.approx(384 / (640 - 8 * steps))
        fly(run, left)
        assert run.finished
        assert run.frames == 640
        assert run.total_iterations == 6 + left


@pytest.mark.parametrize(("before", "after"), [("sync", "pipelined"), ("pipelined", "sync"), ("halves", "pipelined")])
def test_another_way_to_collect_goes_on_with_drones_anew(before: str, after: str) -> None:
    state = saved(f"collect.mode={before}")
    with running(f"collect.mode={after}") as run:
        assert run.load_state_dict(state) == "with another collect.mode: drones start anew"
        assert all(torch.equal(value, state["model"][name]) for name, value in run.policy.state_dict().items())  # type: ignore[index]
        fly(run, 2)
        assert run.iteration == 8


def test_more_drones_go_on_and_a_replay_that_is_lost_is_said() -> None:
    state = saved("algo=sac")
    with running("algo=sac", "env.num_envs=16") as run:
        assert run.load_state_dict(state) == "with another env.num_envs: drones start anew, and the replay is empty"
        fly(run, 2)


def test_settings_that_change_nothing_keep_it_exact() -> None:
    state = saved()
    with running("save_interval=7", "log_interval=3") as run:
        assert run.load_state_dict(state) == "bit for bit"


@pytest.mark.parametrize("words", [["policy.hidden=[32]"], ["algo=td3"], ["algo=sac", "sac.critic_hidden=[16]"]])
def test_what_the_weights_do_not_fit_is_refused(words: list[str]) -> None:
    state = saved("algo=sac")
    with running("algo=sac", *words) as run, pytest.raises(ConfigError, match="cannot go on with another"):
        run.load_state_dict(state)
