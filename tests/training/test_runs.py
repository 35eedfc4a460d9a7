"""Runs end to end, as a user starts them: seeds, kills, resumes, signals, bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tensordict import TensorDict

from fledge.cli import main
from fledge.collect.experience import ExperienceCollector
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import NumericsError
from fledge.storage import CheckpointHistory, RolloutStorage, load_checkpoint, save_checkpoint
from fledge.training.config import make_config
from fledge.training.loop import train as run_train
from fledge.training.nan_dump import replay_update
from fledge.training.ranks import Ranks
from tests.commands import fledge

SMALL = [
    "env.num_envs=32",
    "env.num_maps=2",
    "env.map_refresh_steps=200",
    "env.static_obstacles=60",
    "env.moving_obstacles=16",
    "env.max_episode_steps=300",
    "ppo.rollout_steps=8",
    "ppo.minibatch=128",
    "policy.hidden=[32]",
    "tensorboard=false",
    "replay.steps=8",
    "replay.segment=16",
    "replay.warm_up=0",
    "replay.batch=64",
    "replay.updates=2",
    "replay.size=4000",
]


TINY = ["gym:CartPole-v1", "env.num_envs=8", "ppo.rollout_steps=8", "ppo.minibatch=32", "tensorboard=false"]


def train(folder: Path, iterations: int, *words: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    frames = f"total_frames={iterations * 32 * 8}"
    return fledge("train", "navigation", *SMALL, frames, f"ranks={ranks}", "--folder", folder, *words, apart=ranks > 1)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state, _ = CheckpointHistory(folder / "checkpoints").load_latest()
    learner = state["learner"]
    found = dict(state["model"])
    for name, optimizer in learner.get("optimizers", {"policy": learner.get("optimizer")}).items():
        found |= {f"{name}.{k}": v for k, v in optimizer["state"][0].items()}
    return found | {f"target.{k}": v for k, v in learner.get("targets", {}).items()}


def assert_same(a: Path, b: Path) -> None:
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


KILLED = [("algo=ppo", 1)]
KILLED_SLOWLY = [("algo=ppo", 2), ("algo=sac", 1), ("algo=sac", 2), ("algo=td3", 1), ("algo=dqn", 1)]
KILLED_SLOWLY += [
    ("policy.gru_size=8", 1),
    ("policy.gru_size=8", 2),
    ("collect.mode=pipelined", 1),
    ("collect.mode=halves", 1),
    ("collect.mode=halves", 2),
]


@pytest.mark.parametrize(
    ("how", "ranks"), [*KILLED, *(pytest.param(*case, marks=pytest.mark.slow) for case in KILLED_SLOWLY)]
)
def test_killed_and_resumed_equals_never_stopped_bit_for_bit(tmp_path: Path, how: str, ranks: int) -> None:
    straight = train(tmp_path / "straight", 10, "save_interval=5", how, ranks=ranks)
    assert straight.returncode == 0, straight.stderr
    command = [sys.executable, "-m", "fledge.cli", "train", "navigation", *SMALL, f"total_frames={10 * 32 * 8}"]
    command += [f"ranks={ranks}", how, "save_interval=5", "--folder", str(tmp_path / "killed")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        first = tmp_path / "killed" / "checkpoints" / "checkpoint_000000005.fledge"
        deadline = time.monotonic() + 200
        while not first.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    assert first.exists()
    resumed = fledge("train", "--resume", tmp_path / "killed", apart=ranks > 1)
    assert resumed.returncode == 0, resumed.stderr
    assert "bit for bit" in resumed.stderr
    assert_same(tmp_path / "straight", tmp_path / "killed")
    steps = [json.loads(x)["step"] for x in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 11))


@pytest.mark.slow
def test_two_runs_with_one_seed_are_identical_and_another_seed_differs(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert train(tmp_path / name, 3, f"seed={seed}").returncode == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "a", tmp_path / "c")


@pytest.mark.slow
def test_resuming_with_another_number_of_ranks_works_and_says_it_is_not_exact(tmp_path: Path) -> None:
    assert train(tmp_path / "r", 4, ranks=2).returncode == 0
    resumed = fledge("train", "--resume", str(tmp_path / "r"), "ranks=1", f"total_frames={6 * 32 * 8}")
    assert resumed.returncode == 0, resumed.stderr
    assert "with another number of ranks: drones begin new episodes" in resumed.stderr
    again = fledge("train", "--resume", tmp_path / "r")  # with the settings it went on with
    assert "iteration 6/6; continues bit for bit" in again.stderr
    state, _ = CheckpointHistory(tmp_path / "r" / "checkpoints").load_latest()
    assert state["iteration"] == 6


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_saves_and_leaves_cleanly(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "fledge.cli", "train", *TINY, "total_frames=100000000", "ranks=2"]
    with subprocess.Popen([*command, "--folder", str(tmp_path / "r")], stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "r" / "metrics.jsonl"
        deadline = time.monotonic() + 200
        while not (metrics.exists() and metrics.read_text().count("\n") >= 3) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.stderr is not None
        text = process.stderr.read()
        assert process.wait(timeout=60) == 0, text
    state, _ = CheckpointHistory(tmp_path / "r" / "checkpoints").load_latest()
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert state["iteration"] == last["step"] >= 3


def test_it_runs_under_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29653"]
    command += ["-m", "fledge.cli", "train", *TINY, "total_frames=128", "--folder", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    state, _ = CheckpointHistory(tmp_path / "r" / "checkpoints").load_latest()
    assert len(state["ranks"]) == 2


def test_navrls_own_command_line_works_as_typed(tmp_path: Path) -> None:
    words = ["env.num_envs=32", "env.num_obstacles=40", "env_dyn.num_obstacles=16", "wandb.mode=disabled"]
    words += ["compress_checkpoint=True", "headless=True", "ppo.rollout_steps=4", "ranks=1", "total_frames=128"]
    done = fledge("train", "navigation", *words, "env.num_maps=2", "--folder", str(tmp_path / "r"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames"] == 128
    config = (tmp_path / "r" / "config.yaml").read_text()
    assert "static_obstacles: 40" in config
    assert "moving_obstacles: 16" in config


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--resume", "nowhere"], "is not a run"),
        (["replay.prioritized=true", "algo=td3"], "works only with algo=dqn"),
        (["algo=sac", "total_frames=1000"], "nothing would be learned"),
        (["env.num_env=3"], "Did you mean env.num_envs?"),
        (["env.num_envs=many"], "takes a whole number"),
        (["env.dynamics=magic"], "one of lee or first_order or iris or mujoco or pyflyt"),
        (["total_frames=0"], "at least 1"),
        (["env.num_envs=0"], "must be 1 to 16777216"),
        (["aircraft"], "There is no task 'aircraft'"),
        (["--preset", "slow"], "There is no train preset"),
        (["env.num_envs=33", "ranks=2"], "multiple of the 2 ranks"),
        (["policy.kind=navrl", "env.lidar_azimuths=18"], "36 x 4 beams"),
        (["init_from=nothing.fledge", "ranks=1"], "init_from=nothing.fledge does not exist"),
    ],
)
def test_misuse_gets_one_sentence_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["train", "env.num_maps=2", "ranks=1", *words])
    assert done.exit_code == 2, done.output
    assert sentence in done.output
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    assert train(tmp_path / "r", 1).returncode == 0
    before = (tmp_path / "r" / "metrics.jsonl").read_bytes()
    again = train(tmp_path / "r", 1)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    assert (tmp_path / "r" / "metrics.jsonl").read_bytes() == before


def test_a_corrupted_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    assert train(tmp_path / "r", 4, "save_interval=2").returncode == 0
    newest = tmp_path / "r" / "checkpoints" / "checkpoint_000000004.fledge"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    newest.write_bytes(data)
    resumed = fledge("train", "--resume", str(tmp_path / "r"))
    assert resumed.returncode == 0, resumed.stderr
    assert "iteration 2/4" in resumed.stderr
    assert load_checkpoint(newest)["iteration"] == 4  # written anew


def test_a_full_disk_does_not_stop_training(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from fledge.cli import main; sys.argv = ['fledge', *sys.argv[1:]]; main()"
    )
    words = [*SMALL, "total_frames=1024", "ranks=1", "save_interval=2", "--folder", str(tmp_path / "r"), "--json"]
    command = [sys.executable, "-c", code, "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "checkpoint" in done.stderr
    rows = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 4  # all iterations were trained


def test_nan_while_learning_stops_with_a_dump_that_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = make_config("navigation", "fast", [*SMALL, "total_frames=1024", "ranks=1"])
    healthy = SyncDataCollector.rollout

    def poisoned(self: SyncDataCollector, prepare: Callable[[], None] | None = None) -> TensorDict:
        rollout = healthy(self, prepare)
        if self._frames > 512:
            rollout["reward"][3, 5] = float("nan")
        return rollout

    monkeypatch.setattr(SyncDataCollector, "rollout", poisoned)
    with pytest.raises(NumericsError, match="nan_dump_iteration2") as caught:
        run_train(cfg, tmp_path / "r", Ranks())
    assert caught.value.dump is not None
    with pytest.raises(NumericsError, match="NaN"):
        replay_update(caught.value.dump)
    state = load_checkpoint(caught.value.dump)
    assert all(torch.isfinite(v).all() for v in state["learner"]["model"].values()), "weights before the update"
    state["rollout"]["reward"][3, 5] = 0.0
    save_checkpoint(state, tmp_path / "mended.fledge")
    assert replay_update(tmp_path / "mended.fledge")["total_loss"] < float("inf")


def test_nan_in_replay_stops_with_a_dump_that_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = make_config("navigation", "sac", [*SMALL, "total_frames=4096", "ranks=1"])
    healthy = ExperienceCollector.rollout

    def poisoned(self: ExperienceCollector, prepare: Callable[[], None] | None = None) -> TensorDict:
        rollout = healthy(self, prepare)
        if self._frames > 2000:
            rollout["reward"][:] = float("nan")
        return rollout

    monkeypatch.setattr(ExperienceCollector, "rollout", poisoned)
    with pytest.raises(NumericsError, match="nan_dump_iteration") as caught:
        run_train(cfg, tmp_path / "r", Ranks())
    assert caught.value.dump is not None
    with pytest.raises(NumericsError, match="critic_loss"):
        replay_update(caught.value.dump)
    state = load_checkpoint(caught.value.dump)
    assert all(torch.isfinite(v).all() for v in state["learner"]["weights"].values()), "weights before the update"
    for batch in state["batches"]:
        batch["reward"].nan_to_num_(0.0)
    save_checkpoint(state, tmp_path / "mended.fledge")
    assert replay_update(tmp_path / "mended.fledge")["critic_loss"] < float("inf")


def test_evaluations_and_archives_during_training_are_logged(tmp_path: Path) -> None:
    words = ["eval_interval=2", "eval_episodes=8", "rollout_save_interval=2"]
    assert train(tmp_path / "r", 4, *words).returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert ["eval/success" in row for row in rows] == [False, True, False, True]
    assert 0 <= rows[1]["eval/success"] <= 1
    assert {"perf/data_collection", "perf/policy_training", "perf/evaluation"} <= set(rows[-1])
    assert RolloutStorage(tmp_path / "r" / "rollouts").list() == [2, 4]
    header = (tmp_path / "r" / "metrics.csv").read_text().splitlines()[0]
    assert "eval/success" in header
