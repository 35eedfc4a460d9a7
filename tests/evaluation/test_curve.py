"""Success of every checkpoint that a run has kept."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fledge.cli import main

SMALL = ["env.num_envs=16", "env.num_maps=2", "env.static_obstacles=20", "env.moving_obstacles=8", "tensorboard=false"]
SMALL += ["ppo.rollout_steps=4", "ppo.minibatch=64", "policy.hidden=[16]", "ranks=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curve") / "run"
    words = ["train", "navigation", *SMALL, "total_frames=384", "save_interval=2", "keep_checkpoints=1"]
    done = CliRunner().invoke(main, [*words, "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def test_every_kept_checkpoint_flies_in_every_world_and_is_drawn(run: Path, tmp_path: Path) -> None:
    words = [
        "eval",
        str(run),
        "--checkpoints",
        "--movers",
        "0,8",
        "--episodes",
        "16",
        "env.num_envs=16",
        "env.max_episode_steps=60",
    ]
    words += ["env.static_obstacles=20", "env.num_maps=2", "--picture", str(tmp_path / "curve.png"), "--json"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["frames"], row["moving_obstacles"]) for row in rows] == [
        (frames, movers) for frames in (128, 256, 384) for movers in (0, 8)
    ]
    assert all(row["success_ci95"][0] <= row["success"] <= row["success_ci95"][1] for row in rows)
    assert rows[0]["minutes"] <= rows[-1]["minutes"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_only_a_run_has_checkpoints() -> None:
    done = CliRunner().invoke(main, ["eval", "straight", "--checkpoints"])
    assert done.exit_code == 2
    assert "one run's folder" in done.output
