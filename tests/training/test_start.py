"""How a run starts: from another's weights, and how a start that fails leaves things."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.storage import CheckpointHistory
from fledge.tasks.registry import find_task
from fledge.training.config import TrainConfig, make_config
from fledge.training.init_from import read_initial_policy, take_network
from fledge.training.loop import start_run, train
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

SMALL = [
    "env.num_envs=4",
    "env.num_maps=2",
    "env.static_obstacles=20",
    "env.moving_obstacles=16",
    "ppo.rollout_steps=3",
    "ppo.minibatch=12",
    "replay.steps=3",
    "replay.segment=3",
    "replay.warm_up=0",
    "replay.batch=8",
    "replay.updates=1",
    "replay.size=100",
    "tensorboard=false",
    "total_frames=36",
    "ranks=1",
]
NARROW = ["policy.hidden=[8]"]


def config(*words: str, algo: str = "ppo") -> TrainConfig:
    preset = {"dqn": "dqn"}.get(algo, "")
    return make_config("navigation", preset, [*SMALL, f"algo={algo}", "env.grid_size=16", *words])


def start(*words: str) -> Result:
    return CliRunner().invoke(main, ["train", *SMALL, *words])


# ---- init_from -------------------------------------------------------------------------------------------------------


def test_the_network_of_init_from_is_taken_over_and_said(tmp_path: Path) -> None:
    done = start("init_from=fledge-reflex", "--folder", str(tmp_path / "r"))
    assert done.exit_code == 0, done.output
    assert "network of fledge-reflex: policy.hidden=[256, 256]" in done.output
    state, _ = CheckpointHistory(tmp_path / "r" / "checkpoints").load_latest()
    assert state["policy"] == read_initial_policy("fledge-reflex", find_task("navigation"))["policy"]
    assert "- 256\n  - 256" in (tmp_path / "r" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["policy.hidden=[64]"], r"has \[256, 256\]: leave policy.hidden out"),
        (["policy.kind=navrl"], "has features: leave policy.kind out"),
        (["algo=sac"], r"its network has kind features \(this run needs squashed\)"),
        (["env.lidar_azimuths=18"], r"its network has lidar \[36, 4\] \(this run needs \[18, 4\]\)"),
    ],
)
def test_what_does_not_fit_init_from_is_refused_in_a_sentence(words: list[str], sentence: str) -> None:
    words = [*words, "init_from=fledge-reflex"]
    with pytest.raises(ConfigError, match=sentence):
        take_network(find_task("navigation"), make_config("navigation", "", words), words)


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3", "dqn"])
def test_a_run_starts_with_the_weights_of_another_and_targets_that_equal_them(tmp_path: Path, algo: str) -> None:
    train(config(*NARROW, algo=algo), tmp_path / "first", Ranks())
    cfg = config(f"init_from={tmp_path / 'first'}", "seed=5", *NARROW, algo=algo)
    run = TrainingState(cfg, Ranks())
    outputs = start_run(run, tmp_path / "second", resume=False)
    assert outputs is not None
    outputs.close()
    model = read_initial_policy(str(tmp_path / "first"), find_task("navigation"))["model"]
    for name, value in run.policy.state_dict().items():
        if name != "head.log_std_max":  # follows the schedule, from its beginning
            assert torch.equal(value, model[name]), name
    targets = getattr(run.learner, "targets", {})
    assert set(targets) == {"ppo": set(), "sac": {"critic"}, "td3": {"actor", "critic"}, "dqn": {"online"}}[algo]
    for name, target in targets.items():
        assert torch.equal(target.values, run.learner.flats[name].values), name  # type: ignore[attr-defined]
    if algo == "ppo":
        assert float(run.policy.head.log_std_max) == -0.5  # type: ignore[union-attr]
    run.close()


# ---- starts that fail ------------------------------------------------------------------------------------------------


def test_an_unreadable_init_from_leaves_no_folder_and_one_sentence(tmp_path: Path) -> None:
    torn = tmp_path / "torn.fledge"
    torn.write_bytes(b"not a checkpoint")
    done = start(f"init_from={torn}", "--folder", str(tmp_path / "r"))
    assert done.exit_code == 1
    assert done.output.startswith("fledge: ")
    assert done.output.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = start("--folder", str(tmp_path / "file" / "r"))
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "cannot be written (Not a directory): choose another folder" in done.output


def test_a_start_that_fails_late_does_not_stand_in_the_way_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fledge.training.loop.take_state", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config(*NARROW), tmp_path / "r", Ranks())
    assert not (tmp_path / "r").exists()
    monkeypatch.undo()
    assert start(*NARROW, "--folder", str(tmp_path / "r")).exit_code == 0


FUSSY = """
import torch
from dataclasses import dataclass
from fledge.core.errors import ConfigError
from fledge.core.settings import setting
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task

@dataclass
class Config:
    num_envs: int = setting(4, at_least=1, resume="restart")

class Env(TorchEnv):
    observation_spec = {"place": TensorSpec((2,), torch.float32)}
    action_spec = TensorSpec((2,), torch.float32, -1.0, 1.0)

    def __init__(self, cfg, device="cpu", seed=0, env_offset=0):
        if env_offset:
            raise ConfigError("The second half of these envs is out of order.")
        super().__init__(cfg, device, seed)

    begin = observe = advance = None

task = Task("fussy", Config, Env)
"""


@pytest.mark.slow
def test_ranks_that_cannot_start_give_one_sentence_between_them(tmp_path: Path) -> None:
    (tmp_path / "fussy.py").write_text(FUSSY)
    command = [sys.executable, "-m", "fledge.cli", "train", str(tmp_path / "fussy.py"), "ranks=2", "env.num_envs=4"]
    done = subprocess.run([*command, "--folder", str(tmp_path / "r")], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("run: ")]
    assert lines == ["fledge: Rank 1 did not start: The second half of these envs is out of order."], done.stderr
    assert not (tmp_path / "r").exists()


# ---- a first step that fails -----------------------------------------------------------------------------------------


def test_a_run_that_saved_nothing_says_so_and_begins_anew_with_mended_words(tmp_path: Path) -> None:
    code, folder = tmp_path / "own.py", str(tmp_path / "r")
    code.write_text(
        "calls = 0\n\ndef bad(env, action, out):\n    global calls\n    calls += 1\n"
        "    return out['nothing' if calls > 4 else 'reward']\n\ndef good(env, action, out):\n    return out['reward']\n"
    )
    failed = start(f"reward={code}:bad", "--folder", folder)  # it passes the trial of three steps
    assert failed.exit_code == 2
    assert f"The reward bad failed in {code}, line 6" in failed.output
    again = start(f"reward={code}:good", "--folder", folder)
    assert again.exit_code == 2
    assert "which has no checkpoint yet" in again.output
    assert f"`fledge train --resume {folder}` (in Python, folder={folder!r}, resume=True); or remove" in again.output
    page = CliRunner().invoke(main, ["report", folder])
    assert page.exit_code == 2
    assert "is a run without a checkpoint" in page.output
    words = [f"reward={code}:good", "policy.hidden=[8]", "--resume", folder]
    mended = CliRunner().invoke(main, ["train", *words])
    assert mended.exit_code == 0, mended.output


def test_a_reward_with_too_few_arguments_is_named_before_anything_starts(tmp_path: Path) -> None:
    code = tmp_path / "own.py"
    code.write_text("def short(env, action):\n    return 0\n")
    done = start(f"reward={code}:short", "--folder", str(tmp_path / "r"))
    assert done.exit_code == 2
    assert f"{code}:short takes the arguments (env, action), but must take three" in done.output
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_an_error_of_all_ranks_is_told_once(tmp_path: Path) -> None:
    code = tmp_path / "own.py"
    code.write_text(
        "calls = 0\n\ndef bad(env, action, out):\n    global calls\n    calls += 1\n"
        "    return out['nothing' if calls > 4 else 'reward']\n"
    )
    words = [*SMALL, "ranks=2", f"reward={code}:bad", "--folder", str(tmp_path / "r")]
    done = subprocess.run(
        [sys.executable, "-m", "fledge.cli", "train", *words], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("The reward bad failed") == 1
    assert "lost the connection to another rank" not in done.stderr
    assert "Traceback" not in done.stderr


SLOW = """
import os, time

class Slow:
    def __init__(self):
        if "MASTER_PORT" in os.environ and "RANK" not in os.environ:  # rank 0, once it has started the others
            open("{marker}", "w").close()
            time.sleep(100)

    def __call__(self, env, action, out):
        return out["reward"]
"""


@pytest.mark.slow
def test_ctrl_c_before_anything_was_saved_says_so_once_and_leaves_no_folder(tmp_path: Path) -> None:
    code, marker = tmp_path / "own.py", tmp_path / "starting"
    code.write_text(SLOW.format(marker=marker))
    words = [*SMALL, "ranks=2", f"reward={code}:Slow", "--folder", str(tmp_path / "r")]
    with subprocess.Popen(
        [sys.executable, "-m", "fledge.cli", "train", *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs have it ignored
    ) as process:
        while not marker.exists() and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all ranks
        assert process.stderr is not None
        text = process.stderr.read()
        assert process.wait(timeout=100) == 130, text
    assert text.endswith("fledge: Stopped before anything was saved.\n")
    assert "Aborted" not in text
    assert "--resume" not in text
    assert not (tmp_path / "r").exists()
