"""env.num_envs=auto and ppo.minibatch=auto: what is chosen, what is recorded, and that runs repeat it exactly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.core.errors import ConfigError, FledgeError, InputError, MemoryBudgetError
from fledge.storage import CheckpointHistory
from fledge.training import auto, factories, trials
from fledge.training.auto import ENVS, MINIBATCH, AutoSizes, candidates, choose, describe, read_records
from fledge.training.command import read_training
from fledge.training.config import TrainConfig, make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState
from fledge.training.trials import Trial, run_trials
from tests.training.auto_runs import PLAN, TINY, follow_plan, stop_at


class Stopped(BaseException):
    """Ends a training in the middle, as a kill would."""


def stop() -> None:
    raise Stopped


def config(*words: str) -> TrainConfig:
    return make_config("navigation", "", [*TINY, *words])


def final(folder: Path) -> dict[str, Any]:
    return CheckpointHistory(folder / "checkpoints").load_latest()[0]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


# ---- the setting -------------------------------------------------------------------------------------------------------


def test_auto_is_taken_from_yaml_and_overrides_and_a_number_removes_it(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("auto: [ppo.minibatch]\nenv: {num_envs: auto}\n")
    cfg = make_config("navigation", str(own), [])
    assert sorted(cfg.auto) == [ENVS, MINIBATCH]
    assert cfg.env.num_envs == 1024  # the number that it begins with
    assert make_config("navigation", str(own), ["num_envs=64"]).auto == [MINIBATCH]
    assert make_config("navigation", None, ["env.num_envs=auto", "env.num_envs=8"]).auto == []
    assert make_config("navigation", None, ["hardware=large", "env.num_envs=auto"]).env.num_envs > 1024


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ppo.minibatch=automatic"], "takes a whole number or auto"),
        (["algo=sac", "env.num_envs=auto"], "only with on-policy algorithms"),
        (["algo=dqn", "ppo.minibatch=auto"], "only with algo=ppo"),
        (["ppo.minibatch=auto", "ppo.minibatch_final_scale=4"], "leave one of them out"),
        (["ppo.lr=auto"], "takes a number"),
        (["auto=[ppo.lr]"], "must be env.num_envs or ppo.minibatch"),
    ],
)
def test_misuse_is_refused_in_a_sentence(words: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        read_training(None, None, words, tmp_path / "run", resume=False)


# ---- the choice --------------------------------------------------------------------------------------------------------


def trial(count: int, minibatch: int, *speeds: float) -> Trial:
    return Trial({ENVS: count, MINIBATCH: minibatch}, list(speeds))


def test_more_envs_must_pay_for_each_doubling() -> None:
    old = {ENVS: 1024, MINIBATCH: 64}
    even = [trial(count, 64, 100.0, 100.0, 100.0) for count in (256, 512, 1024, 2048)]
    assert choose(even, old, 1024, "start") == old
    assert choose([*even[:3], trial(2048, 64, 101.5)], old, 1024, "start") == old  # less than 2 % faster
    assert choose([*even[:3], trial(2048, 64, 103.0)], old, 1024, "start")[ENVS] == 2048
    assert choose([*even[:3], trial(4096, 64, 103.0)], old, 1024, "start")[ENVS] == 1024  # two doublings
    assert choose([trial(256, 64, 110.0), *even[1:]], old, 1024, "start")[ENVS] == 256
    spike = [trial(512, 64, 90.0, 500.0, 91.0), trial(1024, 64, 100.0, 99.0, 101.0)]
    assert choose(spike, old, 1024, "start")[ENVS] == 1024  # medians


def test_a_running_training_changes_only_for_a_clear_gain() -> None:
    old = {ENVS: 512, MINIBATCH: 64}
    assert choose([trial(512, 64, 100.0), trial(1024, 64, 100.0)], old, 1024, "load")[ENVS] == 512
    assert (
        choose([trial(512, 64, 100.0), trial(1024, 64, 102.0)], old, 1024, "load")[ENVS] == 1024
    )  # 2 % + its doubling


def test_the_minibatch_doubles_unless_that_is_slower() -> None:
    old = {ENVS: 512, MINIBATCH: 64}
    assert choose([trial(512, 64, 100.0), trial(512, 128, 99.0)], old, 512, "noise")[MINIBATCH] == 128
    assert choose([trial(512, 64, 100.0), trial(512, 128, 90.0)], old, 512, "noise")[MINIBATCH] == 64
    assert choose([trial(512, 64, 100.0)], old, 512, "noise") == old  # the doubled one was hopeless


def test_candidates_keep_enough_minibatches_and_iterations() -> None:
    made = TrainingState(config("total_frames=6400"), Ranks())
    counts = [sizes[ENVS] for sizes in candidates(made, "start")]
    assert counts == [8]  # 4 would give 2 minibatches of 16; 16 would leave 50 iterations
    made.cfg.ppo.minibatch = 4
    made.cfg.total_frames = 25600
    assert [sizes[ENVS] for sizes in candidates(made, "start")] == [2, 4, 8, 16, 32]
    assert candidates(made, "noise") == [{ENVS: 8, MINIBATCH: 4}, {ENVS: 8, MINIBATCH: 8}]
    made.close()


def test_candidates_are_multiples_that_ranks_and_halves_can_share() -> None:
    made = TrainingState(config("collect.mode=halves", "ppo.minibatch=4", "total_frames=25600"), Ranks())
    made.ranks = Ranks(0, 2)
    assert [sizes[ENVS] for sizes in candidates(made, "start")] == [4, 8, 16, 32]
    made.close()


def test_the_noise_scale_must_stay_high_and_a_refusal_waits_for_more(tmp_path: Path) -> None:
    made = TrainingState(config(), Ranks())
    sizes = AutoSizes(made, tmp_path, print)
    sizes.records = [{"why": "start", "seconds": 0.0}]
    made.seconds = 1e6
    sizes._noise.extend([1e9] * 4 + [20.0] * 6)
    assert sizes._reason() == ""
    sizes._noise.extend([40.0] * 6)
    assert sizes._reason() == ""  # 32 of the 64 samples would leave two minibatches
    made.frames_per_iteration = 128
    assert sizes._reason() == "noise"
    refusal = {"why": "noise", "seconds": 1.0, "noise_scale": 30, "old": {MINIBATCH: 16}, "new": {MINIBATCH: 16}}
    sizes.records.append(refusal)
    assert sizes._reason() == ""
    sizes._noise.extend([70.0] * 6)
    assert sizes._reason() == "noise"
    made.seconds = 1.0  # the measurements have taken too much of the time
    assert sizes._reason() == ""
    made.close()


def test_a_lasting_change_of_speed_is_a_reason_to_measure(tmp_path: Path) -> None:
    made = TrainingState(config(), Ranks())
    sizes = AutoSizes(made, tmp_path, print)
    sizes.records, sizes._before = [{"why": "start", "seconds": 0.0}], None
    for speed in [100.0] * 10 + [130.0] * 4:
        sizes._note()
        made.seconds, made.frames = made.seconds + 1, made.frames + int(speed)
    assert sizes._reason() == ""
    for _ in range(7):
        sizes._note()
        made.seconds, made.frames = made.seconds + 1, made.frames + 130
    assert sizes._reason() == "load"
    made.close()


def test_candidates_that_do_not_fit_into_memory_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TrainingState(config(), Ranks())
    found = [{ENVS: count, MINIBATCH: 16} for count in (4, 8, 16)]
    need = trials.rollout_bytes(made.task, factories.with_sizes(made.cfg, found[1]), 1)
    monkeypatch.setattr(trials, "available_bytes", lambda device: 2 * need)
    assert {t.sizes[ENVS] for t in run_trials(made, found, 1)} <= {4, 8}
    made.close()


# ---- the record --------------------------------------------------------------------------------------------------------


def test_trials_disturb_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has measured and chosen 16 envs is the run with env.num_envs=16, bit for bit."""
    monkeypatch.setattr(auto, "choose", lambda *found: {ENVS: 16, MINIBATCH: 16})
    monkeypatch.setattr(auto, "ITERATIONS", 1)
    monkeypatch.setattr(trials, "HOPELESS", 0.0)
    for mode in ("sync", "pipelined", "halves"):
        words = [f"collect.mode={mode}", "total_frames=640"]
        train(config("auto=[env.num_envs]", *words), tmp_path / mode, Ranks(), quiet=True)
        train(config("auto=[]", "env.num_envs=16", *words), tmp_path / f"{mode}_fixed", Ranks(), quiet=True)
        assert len(read_records(tmp_path / mode / "auto.jsonl")[0]["trials"]) > 1
        assert same(final(tmp_path / mode), final(tmp_path / f"{mode}_fixed"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Final states of runs that were never stopped, by collect.mode."""
    states = {}
    with pytest.MonkeyPatch.context() as patch:
        for mode in ("sync", "pipelined", "halves"):
            folder = tmp_path_factory.mktemp("straight") / mode
            follow_plan(folder, patch.setattr)
            train(config(f"collect.mode={mode}"), folder, Ranks(), quiet=True)
            states[mode] = final(folder)
            rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            assert [row["auto/num_envs"] for row in rows[:9]] == [16, 16, 16, 4, 4, 4, 4, 4, 8]
            assert [row["auto/minibatch"] for row in rows[:9]] == [16, 16, 16, 16, 16, 32, 32, 32, 32]
            assert [record["iteration"] for record in read_records(folder / "auto.jsonl")] == list(PLAN)
    return states


@pytest.mark.parametrize(
    "point", ["written:0", "resized:0", "written:3", "resized:3", "saved:4", "written:8", "saved:10"]
)
@pytest.mark.parametrize("mode", ["sync", "pipelined", "halves"])
def test_a_stopped_run_repeats_its_recorded_decisions(
    mode: str, point: str, straight: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        follow_plan(folder, patch.setattr)
        stop_at(point, stop, patch.setattr)
        with pytest.raises(Stopped):
            train(config(f"collect.mode={mode}"), folder, Ranks(), quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        follow_plan(folder, patch.setattr)
        train(config(f"collect.mode={mode}"), folder, Ranks(), resume=True, quiet=True)
    end = final(folder)
    assert same(end, straight[mode])
    assert (end["iteration"], end["frames"]) == (straight[mode]["iteration"], straight[mode]["frames"])
    assert [record["new"] for record in read_records(folder / "auto.jsonl")] == [sizes for _, sizes in PLAN.values()]


def launch(folder: Path, point: str, ranks: int, mode: str) -> list[int]:
    """Start or resume a run on some ranks; return their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-m", "tests.training.auto_runs", str(folder), point, f"collect.mode={mode}"]
        processes.append(subprocess.Popen(command, env=os.environ | place, stderr=subprocess.DEVNULL))
    return [process.wait(timeout=300) for process in processes]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "mode"), [(1, "sync"), (2, "sync"), (2, "pipelined"), (2, "halves")])
def test_a_killed_run_on_several_ranks_repeats_its_recorded_decisions(ranks: int, mode: str, tmp_path: Path) -> None:
    assert launch(tmp_path / "straight", "", ranks, mode) == [0] * ranks
    expected = final(tmp_path / "straight")
    for point in ("written:3", "resized:3", "saved:4"):
        folder = tmp_path / point.replace(":", "_")
        assert launch(folder, point, ranks, mode)[0] == -signal.SIGKILL
        assert launch(folder, "", ranks, mode) == [0] * ranks
        assert same(final(folder), expected)
        assert len(read_records(folder / "auto.jsonl")) == len(PLAN)


def test_a_full_disk_stops_the_run_before_a_size_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_plan(tmp_path, monkeypatch.setattr)
    resized = []
    monkeypatch.setattr(TrainingState, "resize", lambda self, sizes: resized.append(sizes))

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(auto, "write_text", full)
    with pytest.raises((FledgeError, OSError)):
        train(config(), tmp_path, Ranks(), quiet=True)
    assert not resized


GOOD: dict[str, Any] = {"iteration": 0, "why": "start", "seconds": 1.0, "noise_scale": None, "trials": []}
GOOD |= {"old": {ENVS: 8, MINIBATCH: 8}, "new": {ENVS: 8, MINIBATCH: 8}}
DAMAGED: list[dict[str, Any]] = [
    {"why": "noise"},
    {"why": "noise", "noise_scale": float("nan")},
    {"new": {ENVS: 8, MINIBATCH: 16}},
    {"new": {ENVS: True, MINIBATCH: 8}},
    {"iteration": True},
    {"seconds": float("nan")},
    {"why": "else"},
    {"trials": [{}]},
    {"trials": None},
]


@pytest.mark.parametrize(
    "line",
    ["{}", "no json", '{"iteration": -5}', "[" * 100_000, '{"new": {"env.num_envs": 1.5}}']
    + [json.dumps(GOOD | other) for other in DAMAGED],
)
def test_a_damaged_record_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "auto.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(InputError, match=r"Line 2 of .*remove it to measure again"):
        read_records(path)


def test_a_number_on_resume_ends_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_plan(tmp_path / "run", monkeypatch.setattr)
    train(config("total_frames=500"), tmp_path / "run", Ranks(), quiet=True)
    chosen = final(tmp_path / "run")["config"][ENVS]
    _, cfg, _, _ = read_training(None, None, ["env.num_envs=8", "total_frames=600"], tmp_path / "run", resume=True)
    assert cfg.auto == [MINIBATCH]
    assert chosen != 8
    made = TrainingState(cfg, Ranks())
    assert "another env.num_envs" in made.load_state_dict(final(tmp_path / "run"))
    assert made.cfg.env.num_envs == 8
    made.close()


def test_a_chosen_number_of_envs_that_no_longer_fits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TrainingState(config(), Ranks())
    monkeypatch.setattr("fledge.training.memory.available_bytes", lambda device: 1000)
    with pytest.raises(MemoryBudgetError, match="lower env"):
        made.resize({ENVS: 16})
    made.close()


def test_a_change_is_said_with_its_reason() -> None:
    record = {
        "old": {ENVS: 1024, MINIBATCH: 64},
        "new": {ENVS: 512, MINIBATCH: 128},
        "noise_scale": 300,
        "seconds": 2.0,
    }
    text = describe(record, "drones")
    assert text == (
        "auto: env.num_envs 1,024 → 512 (all drones begin new episodes), ppo.minibatch 64 → 128 (noise scale 300); measured "
        "in 2.0 s."
    )
