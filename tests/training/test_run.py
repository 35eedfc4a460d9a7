"""One rank's run: what it counts, when it stops, and how hard its world is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from fledge.storage import CheckpointHistory
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.training.config import TrainConfig, make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

SMALL = [
    "env.num_envs=4",
    "env.num_maps=2",
    "env.static_obstacles=20",
    "env.moving_obstacles=16",
    "ppo.rollout_steps=3",
    "ppo.minibatch=12",
    "policy.hidden=[8]",
    "replay.steps=3",
    "replay.segment=3",
    "replay.warm_up=0",
    "replay.batch=8",
    "replay.updates=1",
    "replay.size=100",
    "tensorboard=false",
    "total_frames=60",
]


def config(*words: str) -> TrainConfig:
    return make_config("navigation", "", [*SMALL, *words])


@contextmanager
def running(*words: str) -> Iterator[TrainingState]:
    run = TrainingState(config(*words), Ranks())
    try:
        yield run
    finally:
        run.close()


# ---- episode metrics -------------------------------------------------------------------------------------------------


def made_up(ends: dict[tuple[int, int], tuple[Outcome, float, int]]) -> TensorDict:
    """A rollout of 3 decisions by 4 drones with these ends (outcome, return, length); nothing else may count."""
    rollout = {
        "outcome": torch.zeros(3, 4, dtype=torch.uint8),
        "reward": torch.arange(12.0).view(3, 4) - 4.0,
        "episode_return": torch.full((3, 4), math.nan),  # valid where an episode ended
        "episode_length": torch.full((3, 4), 9999, dtype=torch.int32),
    }
    for (t, n), (outcome, total, length) in ends.items():
        rollout["outcome"][t, n] = int(outcome)
        rollout["episode_return"][t, n] = total
        rollout["episode_length"][t, n] = length
    return TensorDict(rollout, [3, 4])


def test_episode_metrics_by_hand() -> None:
    ends = {
        (0, 0): (Outcome.SUCCESS, 10.0, 40),
        (2, 0): (Outcome.COLLISION_MOVING, -20.0, 2),  # the same drone once more
        (1, 1): (Outcome.SUCCESS, 12.0, 50),
        (1, 3): (Outcome.TIMEOUT, 1.0, 440),
        (2, 3): (Outcome.SUCCESS, 7.0, 1),
    }
    with running() as run:
        metrics = run.episode_metrics(made_up(ends))
    assert metrics == pytest.approx(
        {
            "success": 3 / 5,
            "collision_static": 0.0,
            "collision_moving": 1 / 5,
            "out_of_bounds": 0.0,
            "timeout": 1 / 5,
            "episodes": 5.0,
            "reward": (66 - 12 * 4) / 12,  # of all twelve decisions
            "return": (10 - 20 + 12 + 1 + 7) / 5,
            "length": (40 + 2 + 50 + 440 + 1) / 5,
        }
    )


def test_no_episode_ended_counts_as_none_and_divides_by_nothing() -> None:
    with running() as run:
        metrics = run.episode_metrics(made_up({}))
    assert metrics.pop("reward") == pytest.approx(1.5)
    assert set(metrics.values()) == {0.0}


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.RUNNING])
def test_every_outcome_is_counted_under_its_name(outcome: Outcome) -> None:
    with running() as run:
        metrics = run.episode_metrics(made_up({(1, 2): (outcome, 3.0, 4)}))
    assert metrics[outcome.name.lower()] == 1.0
    assert sum(metrics[o.name.lower()] for o in Outcome if o is not Outcome.RUNNING) == 1.0


def test_metrics_are_those_of_what_was_flown() -> None:
    with running("env.max_episode_steps=2", "total_frames=1000") as run:
        rollout = run.collect()
        metrics = run.episode_metrics(rollout)
    ended = rollout["terminated"] | rollout["truncated"]
    assert metrics["episodes"] == float(ended.sum()) > 0
    assert metrics["timeout"] == pytest.approx(float(rollout["truncated"].sum()) / metrics["episodes"])
    assert metrics["length"] == pytest.approx(float(rollout["episode_length"][ended].float().mean()))
    assert metrics["reward"] == pytest.approx(float(rollout["reward"].mean()), rel=1e-5)


# ---- max_minutes -----------------------------------------------------------------------------------------------------


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_out_of_time_saves_and_stops_and_can_go_on(tmp_path: Path) -> None:
    cfg = config("max_minutes=1e-9", "save_interval=1000")
    train(cfg, tmp_path / "r", Ranks())
    state, _ = CheckpointHistory(tmp_path / "r" / "checkpoints").load_latest()
    assert (state["iteration"], state["frames"]) == (1, 12)
    assert len(rows(tmp_path / "r")) == 1

    cfg.max_minutes = 0.0
    train(cfg, tmp_path / "r", Ranks(), resume=True)
    train(config("save_interval=1000"), tmp_path / "straight", Ranks())
    assert [row["frames"] for row in rows(tmp_path / "r")] == [12, 24, 36, 48, 60]
    ours, theirs = (CheckpointHistory(tmp_path / name / "checkpoints").load_latest()[0] for name in ("r", "straight"))
    assert ours["iteration"] == theirs["iteration"] == 5
    assert all(torch.equal(ours["model"][k], theirs["model"][k]) for k in theirs["model"])


def test_a_run_within_its_time_goes_to_the_end(tmp_path: Path) -> None:
    train(config("max_minutes=1e6"), tmp_path / "r", Ranks())
    assert rows(tmp_path / "r")[-1]["frames"] == 60


@pytest.mark.parametrize(
    ("minutes", "seconds", "out"), [(0.0, 1e9, False), (2.0, 119.0, False), (2.0, 121.0, True), (0.5, 31.0, True)]
)
def test_time_counts_what_was_trained_and_no_limit_is_none(minutes: float, seconds: float, out: bool) -> None:
    with running(f"max_minutes={minutes}") as run:
        run.seconds = seconds
        assert run.out_of_time is out


def test_a_resumed_run_has_all_its_minutes_again() -> None:
    with running("max_minutes=2") as run:
        run.seconds = 121.0
        assert run.out_of_time
        run.load_state_dict(run.state_dict())
        assert not run.out_of_time
        run.seconds += 121.0
        assert run.out_of_time
        assert run.seconds == 242.0  # the log counts all sessions


# ---- curriculum ------------------------------------------------------------------------------------------------------


def shown(run: TrainingState) -> list[list[int]]:
    """Moving obstacles on each map, of each env."""
    run.collector.wait()
    return [env.bank.tensors["count"].tolist() for env in run.envs]  # type: ignore[attr-defined]


CURRICULUM = ["curriculum.movers_start=0.25", "curriculum.ramp=0.5"]
WAYS = ["collect.mode=sync", "collect.mode=pipelined", "collect.mode=halves", "algo=sac"]


@pytest.mark.parametrize("way", WAYS)
def test_collecting_puts_the_curriculum_in_place_before_it_flies(way: str) -> None:
    with running(*CURRICULUM, way) as run:
        for progress, count in ((0.0, 4), (0.25, 10), (0.5, 16), (1.0, 16), (0.0, 4)):
            run.collect(progress)
            assert shown(run) == [[count, count]] * len(run.envs)


def test_the_curriculum_follows_the_runs_own_progress() -> None:
    with running(*CURRICULUM) as run:
        counts, progress = [], []
        while not run.finished:
            progress.append(run.progress)
            run.learn(run.collect())
            counts.append(shown(run)[0][0])
    assert progress == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert counts == [4, 10, 16, 16, 16]


def test_a_world_without_a_curriculum_is_left_as_it_is() -> None:
    run = TrainingState(
        make_config("gym:CartPole-v1", "", ["env.num_envs=2", "ppo.rollout_steps=2", "total_frames=8"]), Ranks()
    )
    try:
        assert run.collect(0.0)["reward"].shape == (2, 2)
    finally:
        run.close()
