"""Every example runs as a user would run it, with small numbers, and says what its docstring promises."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fledge.envs.placement import EnvPlacement
from tests import commands

EXAMPLES = Path(__file__).parents[2] / "examples"
HOVER = EXAMPLES / "hover.py"
TESTED = {
    "a2c",
    "hover",
    "read_checkpoint",
    "remember",
    "checkpoint_saver",
    "demo",
    "replay_buffer",
    "stable_baselines3_ppo",
    "cleanrl_style",
    "torchrl_ppo",
    "trpo",
}
SMALL = ["env.num_envs=16", "ranks=1", "ppo.rollout_steps=8", "ppo.minibatch=64", "tensorboard=false"]


def run(*words: object, expect: int = 0, cwd: Path | None = None) -> str:
    command = [sys.executable, *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode == expect, done.stderr
    return done.stdout


def fledge(*words: object, **options: Any) -> str:
    return run("-m", "fledge.cli", *words, **options)


def test_every_example_is_tested_and_says_what_one_sees() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    for path in EXAMPLES.glob("*.py"):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert f"examples/{path.name}" in doc, f"{path.name} does not say how it is run"


@pytest.mark.slow
def test_the_demo_trains_evaluates_and_writes_a_page(tmp_path: Path) -> None:
    run(EXAMPLES / "demo.py", "--out", tmp_path, "--episodes", 4, *SMALL, "total_frames=256")
    page = (tmp_path / "report.html").read_text()
    assert "Fledge: learning to fly" in page
    assert "this run" in page


# ---- hover -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hover_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations, resumed for two more."""
    folder = tmp_path_factory.mktemp("hover") / "run"
    assert commands.fledge("train", HOVER, *SMALL, "total_frames=256", "--folder", folder).returncode == 0
    done = commands.fledge("train", HOVER, "--resume", folder, "total_frames=512", "--json")
    assert json.loads(done.stdout)["frames"] == 512
    return folder


def test_hover_is_short() -> None:
    assert len(HOVER.read_text().splitlines()) < 150


def test_hover_keeps_the_contract_of_an_env() -> None:
    from fledge.envs.checker import check_tensor_env
    from fledge.tasks.registry import find_task

    task = find_task(str(HOVER))

    def make(num_envs: int, seed: int, steps: int = 20) -> Any:
        env: Any = task.make_env(task.config(num_envs=num_envs), EnvPlacement(seed=seed))
        env.max_steps = steps
        return env

    check_tensor_env(make, 100, make_longer=lambda **given: make(steps=60, **given))


def test_hover_turns_bodies_as_rigid_bodies_turn() -> None:
    import torch

    from fledge.tasks.registry import find_task

    env: Any = find_task(str(HOVER)).env
    hover = sys.modules[env.__module__]
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.nn.functional.normalize(torch.randn(9, 4, generator=generator), dim=-1) for _ in range(2))
    v = torch.randn(9, 3, generator=generator)
    assert torch.allclose(hover.rotate(hover.multiply(a, b), v), hover.rotate(a, hover.rotate(b, v)), atol=1e-5)
    quarter = hover.turn(torch.tensor([[0.0, 0.0, torch.pi / 2]]))
    assert torch.allclose(
        hover.rotate(quarter, torch.tensor([[1.0, 0.0, 0.0]])), torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-6
    )


def test_a_quadrotor_without_thrust_falls_and_with_its_weight_stays() -> None:
    import torch

    from fledge.tasks.registry import find_task

    task = find_task(str(HOVER))
    env: Any = task.make_env(task.config(num_envs=2, gust=0.0, tilt_deg=0.0, offset_m=0.0))
    env.reset()
    env.state["vel"], env.state["rates"] = torch.zeros(2, 3), torch.zeros(2, 3)
    for _ in range(20):
        env.step(torch.tensor([[-1.0, 0, 0, 0], [0.0, 0, 0, 0]]))
    fallen, held = (env.state["pos"] - env.target)[:, 2].tolist()
    assert fallen == pytest.approx(-0.5 * 9.81 * 0.4**2, rel=0.1)
    assert held == pytest.approx(0.0, abs=1e-5)


@pytest.mark.slow
def test_hover_is_judged_drawn_reported_and_exported(hover_run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "hover.png"
    row = json.loads(
        fledge("eval", hover_run, "--task", HOVER, "--episodes", 16, "--picture", picture, "--json").splitlines()[-1]
    )
    assert row["headline"] == "success"
    assert row["success"] + row["astray"] + row["crash"] == pytest.approx(1.0)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    fledge("report", hover_run, "--task", HOVER, "--episodes", 16)
    assert "success" in (hover_run / "report.html").read_text()
    fledge("export", hover_run, tmp_path / "hover.onnx", "--task", HOVER)
    assert (tmp_path / "hover.onnx").stat().st_size > 1000


def test_a_run_of_code_is_not_continued_unless_the_code_is_named(hover_run: Path) -> None:
    done = commands.fledge("train", "--resume", hover_run)
    assert done.returncode == 2
    assert "is code and is not run unless you name it" in done.stderr


@pytest.mark.slow
def test_hover_learns_to_hover(tmp_path: Path) -> None:
    fledge("train", HOVER, "--folder", tmp_path / "run")
    row = json.loads(fledge("eval", tmp_path / "run", "--task", HOVER, "--episodes", 512, "--json"))
    assert row["success"] > 0.95


# ---- an algorithm of one's own ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a2c_is_short_trains_on_two_ranks_and_resumes(tmp_path: Path) -> None:
    script = EXAMPLES / "a2c.py"
    assert len(script.read_text().splitlines()) < 120
    algo = f"algo={script}:A2C"
    small = ["env.num_envs=16", "ranks=2", "threads=1", "algo_config.rollout_steps=8", "tensorboard=false"]
    world = ["env.num_maps=1", "env.static_obstacles=20", "env.moving_obstacles=4"]
    fledge("train", "navigation", algo, *small, *world, "total_frames=256", "--folder", tmp_path / "nav")
    result = json.loads(fledge("train", "--resume", tmp_path / "nav", algo, "total_frames=512", "--json"))
    assert result["frames"] == 512
    assert {"policy_loss", "value_loss", "entropy", "grad_norm"} <= set(result)


@pytest.mark.slow
def test_a2c_learns_to_balance_a_pole(tmp_path: Path) -> None:
    words = ["seed=1", "ranks=1", "threads=1", "total_frames=40000", "tensorboard=false"]
    algo = f"algo={EXAMPLES / 'a2c.py'}:A2C"
    result = json.loads(fledge("train", "gym:CartPole-v1", algo, *words, "--folder", tmp_path / "pole", "--json"))
    assert result["return_recent"] > 100  # a policy that knows nothing has about 20


@pytest.mark.slow
def test_trpo_keeps_to_its_trust_region_and_learns(tmp_path: Path) -> None:
    words = ["seed=1", "ranks=1", "threads=1", "total_frames=16384", "env.num_envs=32", "tensorboard=false"]
    algo = f"algo={EXAMPLES / 'trpo.py'}:TRPO"
    result = json.loads(fledge("train", "gym:CartPole-v1", algo, *words, "--folder", tmp_path / "pole", "--json"))
    rows = [json.loads(line) for line in (tmp_path / "pole" / "metrics.jsonl").read_text().splitlines()]
    kl = next(name for name in rows[0] if name.endswith("kl"))
    assert all(0 <= row[kl] <= 0.01 for row in rows)
    assert result["return_recent"] > 35  # a policy that knows nothing has about 20


# ---- parts of ours in other people's loops ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loop_that_was_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    script = EXAMPLES / "checkpoint_saver.py"
    run(script, "--folder", tmp_path / "a", "--kill-at", 170, expect=-signal.SIGKILL)
    resumed = run(script, "--folder", tmp_path / "a")
    straight = run(script, "--folder", tmp_path / "b")
    assert re.match(r"resumed at step (50|100|150)\n", resumed)
    assert "resumed" not in straight
    assert resumed.splitlines()[-1] == straight.splitlines()[-1]


WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing these fails
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("level", [0, 2, 5, 9])
def test_checkpoints_can_be_read_without_fledge(tmp_path: Path, level: int) -> None:
    from fledge.storage import save_checkpoint
    from tests.storage.states import near_at

    script, first = EXAMPLES / "read_checkpoint.py", near_at(1, 3000)
    path = save_checkpoint(first, tmp_path / "a", compression_level=level)
    absent = "torch,fledge" + (",blosc2,pcodec" if level == 0 else "")
    out = run("-c", WITHOUT, absent, script, path)
    total = first["model"]["weight"].double().sum().item()
    assert re.search(rf"model/weight  float32  \(3000,\)  {total:.4g}", out), out
    if level:
        path = save_checkpoint(near_at(2, 3000), tmp_path / "b", compression_level=level, base=path)
        out = run("-c", WITHOUT, absent, script, path)
        assert f"{near_at(2, 3000)['model']['weight'].double().sum().item():.4g}" in out


def test_the_reader_of_checkpoints_gives_every_bit_in_30_lines(tmp_path: Path) -> None:
    import runpy

    import numpy as np
    import torch
    from tensordict import TensorDict

    from fledge.storage import RolloutStorage, save_checkpoint
    from fledge.storage.format.reader import CheckpointFile
    from tests.storage.states import awkward_state

    script = EXAMPLES / "read_checkpoint.py"
    read = runpy.run_path(str(script))["read"]
    body = re.search(r"^def read.*?return arrays\n", script.read_text(), re.S | re.M)
    assert body is not None
    assert len([line for line in body[0].splitlines() if line.strip()]) <= 30
    paths = [save_checkpoint(awkward_state(), tmp_path / str(level), compression_level=level) for level in (0, 9)]
    rollout = TensorDict({"lidar": torch.randn(4, 32, 6).cumsum(1)}, [4, 32])
    paths.append(Path(RolloutStorage(tmp_path / "rollouts").save(rollout, 1)))  # its axes are in another order
    for path in paths:
        arrays = read(path)
        with CheckpointFile(path) as opened:
            for number, entry in enumerate(opened.entries):
                assert np.ascontiguousarray(arrays[entry.name]).tobytes() == opened.read_bytes(number).tobytes()


def test_replay_buffer_feeds_a_dqn() -> None:
    out = run(EXAMPLES / "replay_buffer.py", "--steps", 600, "--warm-up", 100)
    assert re.search(r"step +600  return +\d+", out)
    assert re.search(r"\d+ transitions in \d+ kB; raw: \d+ kB", out)


def test_stable_baselines3_flies_our_drones() -> None:
    pytest.importorskip("stable_baselines3")
    out = run(EXAMPLES / "stable_baselines3_ppo.py", "--steps", 512, "--num-envs", 16, "--rollout", 16)
    assert re.search(r" 512 decisions ", out)


def test_cleanrl_style_imports_nothing_of_ours_and_learns() -> None:
    script = EXAMPLES / "cleanrl_style.py"
    assert "import fledge" not in script.read_text()
    assert "from fledge" not in script.read_text()
    out = run(script, "--total-steps", 512, "--num-envs", 16, "--num-steps", 16)
    assert re.search(r" 512 decisions, .*\{'\w+': [\d.]+", out)


def test_torchrl_collects_and_learns() -> None:
    pytest.importorskip("torchrl")
    out = run(EXAMPLES / "torchrl_ppo.py", "--frames", 512, "--num-envs", 16, "--rollout", 16)
    assert re.search(r" 512 decisions.*success", out)
