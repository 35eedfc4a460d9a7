"""Resuming with other settings: what goes on, what starts anew and is said, what is refused."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fledge.core.errors import ConfigError, StorageError
from fledge.storage import CheckpointHistory, RolloutStorage, rollouts
from fledge.storage.history import history
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.learner_checks import OTHER_ROUNDING
from fledge.training.loop import take_state, train
from fledge.training.outputs import RunOutputs
from fledge.training.ranks import Ranks
from fledge.training.run import EXACT, TrainingState

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
def running(*words: str) -> Iterator[TrainingState]:
    run = TrainingState(make_config("navigation", "", [*SMALL, *words]), Ranks())
    try:
        yield run
    finally:
        run.close()


def fly(run: TrainingState, iterations: int) -> None:
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
        assert run.load_state_dict(state) == "with another collect.mode: drones begin new episodes"
        assert all(torch.equal(value, state["model"][name]) for name, value in run.policy.state_dict().items())  # type: ignore[index]
        fly(run, 2)
        assert run.iteration == 8


def test_more_drones_go_on_and_a_replay_that_is_lost_is_said() -> None:
    state = saved("algo=sac")
    with running("algo=sac", "env.num_envs=16") as run:
        assert (
            run.load_state_dict(state)
            == "with another env.num_envs: drones begin new episodes, and the replay is empty"
        )
        fly(run, 2)


def test_a_run_that_plans_goes_on_exactly_with_what_its_drones_remember() -> None:
    words = ("env.plan=true", "policy.kind=planned", "env.planner.horizon_s=1", "env.planner.headings=8")
    with running(*words) as run:
        fly(run, 3)
        state = copy.deepcopy(run.state_dict())
        ours = weights_after(run, 2)
    with running(*words) as run:
        assert run.load_state_dict(state) == EXACT
        assert all_equal(weights_after(run, 2), ours)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_run_of_a_version_that_rounds_otherwise_is_told_so(algo: str) -> None:
    state = saved(f"algo={algo}")
    with running(f"algo={algo}") as run:
        assert take_state(run, copy.deepcopy(state), True) == "Resumed at iteration 6/10; continues bit for bit."
    del state["rounding"]  # as in states of earlier versions
    with running(f"algo={algo}") as run:
        told = take_state(run, copy.deepcopy(state), True)
        assert told == f"Resumed at iteration 6/10; continues from its saved state. {OTHER_ROUNDING}"
        assert "\n" not in told
        again = run.state_dict()
    with running(f"algo={algo}") as run:
        assert OTHER_ROUNDING not in take_state(run, again, True), "once: what follows is computed by this version"
    with running(f"algo={algo}", "seed=3") as run:
        told = take_state(run, copy.deepcopy(state), True)
        assert "continues with" in told
        assert told.endswith(OTHER_ROUNDING)


def test_settings_that_change_nothing_keep_it_exact() -> None:
    state = saved()
    with running("save_interval=7", "log_interval=3") as run:
        assert run.load_state_dict(state) == "bit for bit"


@pytest.mark.parametrize("words", [["policy.hidden=[32]"], ["algo=td3"], ["algo=sac", "sac.critic_hidden=[16]"]])
def test_what_the_weights_do_not_fit_is_refused(words: list[str]) -> None:
    state = saved("algo=sac")
    with running("algo=sac", *words) as run, pytest.raises(ConfigError, match="cannot continue with another"):
        run.load_state_dict(state)


# ---- what each class of settings means -------------------------------------------------------------------------------


def flown(run: TrainingState) -> list[torch.Tensor]:
    """Where every drone is, and in which step of which episode."""
    return [run.envs[0].state[name].clone() for name in ("pos", "step", "episode")]  # type: ignore[attr-defined]


def weights_after(run: TrainingState, iterations: int) -> list[torch.Tensor]:
    fly(run, iterations)
    return [value.clone() for value in run.policy.state_dict().values()]


def all_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def halfway() -> tuple[dict[str, object], list[torch.Tensor], list[torch.Tensor]]:
    """A run's state after six iterations, where its drones were, and its weights after two more."""
    with running() as run:
        fly(run, 6)
        state = copy.deepcopy(run.state_dict())
        return state, flown(run), weights_after(run, 2)


def test_same_nothing_that_is_computed_changes(halfway: tuple[dict[str, object], ...]) -> None:
    state, drones, later = halfway
    words = [
        "save_interval=7",
        "log_interval=3",
        "max_minutes=9",
        "keep_best=0",
        "eval_episodes=5",
        "env.nan_guard=true",
    ]
    with running(*words) as run:
        assert run.load_state_dict(copy.deepcopy(state)) == "bit for bit"
        assert all_equal(flown(run), drones)
        assert all_equal(weights_after(run, 2), later)


def test_changes_drones_fly_on_but_learning_goes_another_way(halfway: tuple[dict[str, object], ...]) -> None:
    state, drones, later = halfway
    with running("ppo.lr=0.01", "env.reward.near=0.9") as run:
        assert run.load_state_dict(copy.deepcopy(state)) == "with changed env.reward.near, ppo.lr"
        assert all_equal(flown(run), drones)
        assert not all_equal(weights_after(run, 2), later)


@pytest.mark.parametrize("word", ["seed=5", "env.num_envs=16", "env.num_maps=3", "env.max_episode_steps=100"])
def test_restart_weights_and_counters_go_on_and_episodes_begin_anew(
    halfway: tuple[dict[str, object], ...], word: str
) -> None:
    state, _, _ = halfway
    with running(word) as run:
        fresh = flown(run)
        how = run.load_state_dict(copy.deepcopy(state))
        assert how == f"with another {word.split('=')[0]}: drones begin new episodes"
        assert all_equal(flown(run), fresh)
        assert (run.iteration, run.frames) == (6, 384)
        assert all(torch.equal(v, state["model"][k]) for k, v in run.policy.state_dict().items())  # type: ignore[index]


@pytest.mark.parametrize(
    "word", ["policy.hidden=[32]", "env.lidar_azimuths=18", "env.lidar_range_m=5", "algo=sac", "policy.kind=navrl"]
)
def test_weights_what_would_not_fit_is_refused_before_anything_is_loaded(
    halfway: tuple[dict[str, object], ...], word: str
) -> None:
    state, _, _ = halfway
    with running(word) as run:
        before = [v.clone() for v in run.policy.state_dict().values()]
        with pytest.raises(ConfigError, match=rf"cannot continue with another {word.split('=')[0]}: the saved weights"):
            run.load_state_dict(copy.deepcopy(state))
        assert run.iteration == 0
        assert all_equal(list(run.policy.state_dict().values()), before)


def test_weights_of_an_observation_that_is_not_read_only_begin_episodes_anew(
    halfway: tuple[dict[str, object], ...],
) -> None:
    state, _, _ = halfway
    with running("env.grid_map=true", "env.grid_size=16") as run:
        how = run.load_state_dict(copy.deepcopy(state))
        assert how == "with another env.grid_map, env.grid_size: drones begin new episodes"


def test_weights_of_an_algorithm_that_does_not_run_do_not_matter(halfway: tuple[dict[str, object], ...]) -> None:
    state, _, later = halfway
    with running("sac.critic_hidden=[8]") as run:
        assert run.load_state_dict(copy.deepcopy(state)) == "bit for bit"
        assert all_equal(weights_after(run, 2), later)


def test_another_ceiling_of_the_spread_holds_from_the_first_rollout_on(tmp_path: Path) -> None:
    words = ["tensorboard=false", "ranks=1", "log_interval=1"]
    train(make_config("navigation", "", [*SMALL, *words, "total_frames=256"]), tmp_path / "r", Ranks())
    changed = ["total_frames=320", "ppo.log_std_max=-2.5", "ppo.log_std_max_final=-2.5", "ppo.lr=1e-6"]
    train(make_config("navigation", "", [*SMALL, *words, *changed]), tmp_path / "r", Ranks(), resume=True)
    last = json.loads((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 5
    assert last["kl"] == pytest.approx(0.0, abs=1e-4)  # with the old spread it is above 1


def test_an_interrupted_run_keeps_the_same_best_checkpoint_as_one_that_went_through(tmp_path: Path) -> None:
    words = [*SMALL, "env.max_episode_steps=6", "env.goal_radius_m=25", "env.decimation=5", "total_frames=640"]
    cfg = make_config("navigation", "", [*words, "save_interval=1", "keep_checkpoints=1", "tensorboard=false"])
    for name, stops in (("straight", 0), ("stopped", 3)):
        for number in range(stops + 1):
            cfg.max_minutes = 1e-9 if number < stops else 0.0  # after one iteration
            train(cfg, tmp_path / name, Ranks(), resume=number > 0)
    kept, logged = {}, {}
    for name in ("straight", "stopped"):
        entries = CheckpointHistory(tmp_path / name / "checkpoints").entries()
        kept[name] = [(entry.step, entry.metric) for entry in entries]
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        logged[name] = [(row["step"], row["success_recent"]) for row in rows]
    assert logged["stopped"] == logged["straight"]
    assert kept["stopped"] == kept["straight"]
    assert len({recent for _, recent in logged["straight"]}) > 2, "the test must meet successes"


def test_a_row_of_the_log_over_several_iterations_is_whole_after_a_resume(tmp_path: Path) -> None:
    words = [*SMALL, "env.max_episode_steps=6", "tensorboard=false", "log_interval=4", "total_frames=256"]
    cfg = make_config("navigation", "", words)
    train(cfg, tmp_path / "straight", Ranks())
    for minutes in (1e-9, 0.0):
        cfg.max_minutes = minutes
        train(cfg, tmp_path / "stopped", Ranks(), resume=not minutes)
    logged = [json.loads((tmp_path / name / "metrics.jsonl").read_text()) for name in ("straight", "stopped")]
    assert logged[0]["episodes"] == logged[1]["episodes"] > 0


@pytest.mark.parametrize("mode", ["sync", "pipelined", "halves"])
def test_compressed_rollouts_teach_the_same_and_go_on_where_they_stopped(tmp_path: Path, mode: str) -> None:
    words = [*SMALL, f"collect.mode={mode}", "tensorboard=false", "total_frames=256", "rollout_save_interval=2"]
    weights = {}
    for name, level in (("plain", 0), ("compressed", 3)):
        cfg = make_config("navigation", "", [*words, f"collect.compression_level={level}"])
        for minutes in (1e-9, 0.0):
            cfg.max_minutes = minutes
            train(cfg, tmp_path / name, Ranks(), resume=not minutes)
        state, _ = CheckpointHistory(tmp_path / name / "checkpoints").load_latest()
        assert state["iteration"] == 4
        weights[name] = list(state["model"].values())
    assert all_equal(weights["plain"], weights["compressed"])
    archived = [RolloutStorage(tmp_path / name / "rollouts").load(2) for name in weights]
    assert torch.equal(archived[0]["input"], archived[1]["input"])


def test_a_rollout_is_on_disk_before_the_checkpoint_after_which_a_resume_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a kill between the two would lose the rollout; and the last one is there when the training returns."""
    late, found = rollouts.write_state, []

    def write_late(path: Path, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return late(path, *args, **kwargs)

    def write(path: Path, *args: Any, **kwargs: Any) -> Any:
        step = int(path.stem.rpartition("_")[2])
        found.append(step % 2 or (tmp_path / "rollouts" / f"rollout_{step:09d}.fledge").exists())
        return late(path, *args, **kwargs)

    monkeypatch.setattr(rollouts, "write_state", write_late)
    monkeypatch.setattr(history, "write_state", write)
    words = [*SMALL, "tensorboard=false", "total_frames=256", "rollout_save_interval=2", "save_interval=1"]
    train(make_config("navigation", "", words), tmp_path, Ranks())
    assert len(found) == 4
    assert all(found)
    assert RolloutStorage(tmp_path / "rollouts").list() == [2, 4]


@pytest.mark.parametrize("delta", ["thin", "weights_only", "all"])
def test_checkpoints_as_differences_resume_exactly(tmp_path: Path, delta: str) -> None:
    words = [*SMALL, "tensorboard=false", "save_interval=1", "keep_checkpoints=2", "total_frames=384"]
    train(make_config("navigation", "", words), tmp_path / "straight", Ranks())
    cfg = make_config("navigation", "", [*words, f"save_delta={delta}"])
    for minutes in (1e-9, 1e-9, 0.0):
        first = not (tmp_path / "stopped").exists()
        cfg.max_minutes = minutes
        train(cfg, tmp_path / "stopped", Ranks(), resume=not first)
    found = [CheckpointHistory(tmp_path / name / "checkpoints") for name in ("straight", "stopped")]
    assert any(entry.base for entry in found[1].entries()), "there must be differences"
    assert not any(entry.base for entry in found[0].entries())
    states = [history.load_latest()[0] for history in found]
    assert all_equal(*(list(state["model"].values()) for state in states))


def test_tensorboard_has_every_step_and_the_savers_figures_after_resumes(tmp_path: Path) -> None:
    cfg = make_config("navigation", "", [*SMALL, "env.max_episode_steps=6", "save_interval=1", "total_frames=256"])
    for minutes in (1e-9, 1e-9, 0.0):
        cfg.max_minutes = minutes
        train(cfg, tmp_path / "r", Ranks(), resume=(tmp_path / "r").exists())
    events = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("success")] == [1, 2, 3, 4]
    assert {"checkpoint/saves", "checkpoint/bytes_out", "checkpoint/stall_p99_ms", "checkpoint/queue_size"} <= set(
        events.Tags()["scalars"]
    )


def test_every_ending_says_what_was_saved_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "r"
    cfg = make_config("navigation", "", [*SMALL, "tensorboard=false", "total_frames=192", "max_minutes=1e-9"])
    train(cfg, folder, Ranks())
    said = capsys.readouterr().err
    assert f"Stopped: iteration 1/3, 64 decisions; saved in {folder}." in said
    assert f"continue:  fledge train --resume {folder}\n" in said
    cfg.max_minutes = 0.0
    train(cfg, folder, Ranks(), resume=True)
    finished = [f"Finished: iteration 3/3, 192 decisions; saved in {folder}.", f"fledge eval {folder}"]
    finished.append(f"fledge train --resume {folder} total_frames=384")
    said = capsys.readouterr().err
    assert all(text in said for text in finished), said
    train(cfg, folder, Ranks(), resume=True)
    said = capsys.readouterr().err
    assert "It has finished" in said
    assert all(text in said for text in finished), said


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_again(tmp_path: Path) -> None:
    cfg = make_config("navigation", "", [*SMALL, "save_interval=1"])
    train(cfg, tmp_path, Ranks())
    files = sorted((tmp_path / "checkpoints").glob("checkpoint_*.fledge"))
    for file in files:
        file.write_bytes(file.read_bytes()[:1000])
    rows = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(StorageError, match="no checkpoint to resume from: checkpoint_"):
        train(cfg, tmp_path, Ranks(), resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == rows
    assert all(file.stat().st_size == 1000 for file in files)


def test_the_way_to_go_on_names_a_reward_of_ones_own_and_more_frames_than_were_flown(tmp_path: Path) -> None:
    (tmp_path / "pay.py").write_text("def mine(env, action, out):\n    return out['reward'] * 2\n")
    cfg = make_config("navigation", "", [*SMALL, f"reward={tmp_path / 'pay.py'}:mine"])
    run = TrainingState(cfg, Ranks(), find_task("navigation"))
    outputs = RunOutputs(run, tmp_path / "run")
    run.frames = 5 * cfg.total_frames
    text = outputs.ending()
    assert f"reward={cfg.reward}" in text
    assert int(re.search(r"total_frames=(\d+)", text)[1]) > run.frames
    outputs.close()
    run.close()
