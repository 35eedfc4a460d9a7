"""Fine-tuning NavRL's released policy: its .pt file, and the .fledge files that `convert` and `export` make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.storage import convert_checkpoint
from fledge.tasks.navigation.networks.navrl import NavRLPolicy, load_navrl_checkpoint
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.init_from import other_env, take_network
from fledge.training.loop import start_run
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState
from tests.reference.navrl_files import write_navrl_checkpoint

RELEASED = Path(__file__).resolve().parents[3] / "shared" / "data" / "navrl_checkpoint.pt"
SMALL = [
    "env.num_envs=4",
    "env.num_maps=1",
    "env.static_obstacles=20",
    "env.moving_obstacles=16",
    "ppo.rollout_steps=3",
    "ppo.minibatch=12",
    "tensorboard=false",
    "total_frames=12",
    "ranks=1",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_navrl_checkpoint(tmp_path_factory.mktemp("navrl") / "navrl.pt")


@pytest.fixture(scope="module")
def files(checkpoint: Path) -> dict[str, Path]:
    """The same policy as NavRL's file, converted, and exported."""
    converted, exported = checkpoint.with_name("converted.fledge"), checkpoint.with_name("exported.fledge")
    convert_checkpoint(checkpoint, converted)
    done = CliRunner().invoke(main, ["export", str(checkpoint), str(exported)])
    assert done.exit_code == 0, done.output
    return {"pt": checkpoint, "converted": converted, "exported": exported}


def begun(path: Path, folder: Path, *words: str) -> TrainingState:
    """Return a run that has taken over the weights of a file, before its first update."""
    overrides = [*SMALL, f"init_from={path}", *words]
    task = find_task("navigation")
    cfg = make_config(task, "navrl", overrides)
    assert take_network(task, cfg, overrides) == []
    run = TrainingState(cfg, Ranks())
    outputs = start_run(run, folder, resume=False)
    assert outputs is not None
    outputs.close()
    return run


@pytest.mark.parametrize("kind", ["pt", "converted", "exported"])
def test_a_fine_tune_begins_with_navrls_weights_and_value_normalisation(
    files: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    run, navrl = begun(files[kind], tmp_path / "run"), load_navrl_checkpoint(files["pt"])
    assert_same_policy(run, navrl)
    run.close()


@pytest.mark.skipif(not RELEASED.is_file(), reason=f"NavRL's released checkpoint is not at {RELEASED}")
def test_a_fine_tune_begins_with_the_released_weights(tmp_path: Path) -> None:
    run = begun(RELEASED, tmp_path / "run")
    assert_same_policy(run, load_navrl_checkpoint(RELEASED))
    run.close()


def assert_same_policy(run: TrainingState, navrl: NavRLPolicy) -> None:
    """Compare weights exactly, and actions and values on what the run's env observes."""
    for ours, theirs in run.policy._pairs(navrl.network):  # type: ignore[union-attr, operator]
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], tensor), name
    for name, tensor in navrl.value_norm.state_dict().items():
        assert torch.equal(run.policy.value_norm.state_dict()[name], tensor), name  # type: ignore[union-attr]
    obs = run.envs[0].reset()["obs"]
    torch.testing.assert_close(run.policy.act(obs), navrl.act(obs), rtol=1e-5, atol=1e-6)


def test_the_files_of_one_policy_are_flown_in_the_same_env_with_the_same_actions(files: dict[str, Path]) -> None:
    loaded = [load_policy(str(path)) for path in files.values()]
    assert loaded[0].env is not None
    assert all(policy.env == loaded[0].env for policy in loaded)
    obs = loaded[0].agent.example_inputs(8)
    actions = [policy.agent.act(obs) for policy in loaded]
    torch.testing.assert_close(actions[1], actions[0], rtol=0, atol=0)
    torch.testing.assert_close(actions[2], actions[0], rtol=1e-5, atol=1e-6)


def test_training_says_what_starts_fresh(files: dict[str, Path], tmp_path: Path) -> None:
    words = ["train", "navigation", "--preset", "navrl", *SMALL, f"init_from={files['pt']}"]
    done = CliRunner().invoke(main, [*words, "--folder", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert f"come from {files['pt']}; the optimiser, schedules and counters start fresh." in done.output


@pytest.mark.parametrize(
    ("preset", "words"), [("sac", []), ("navrl", ["env.lidar_azimuths=18"]), ("fast", ["env.lidar_range_m=8"])]
)
def test_a_network_that_does_not_fit_names_the_preset_that_does(
    files: dict[str, Path], preset: str, words: list[str]
) -> None:
    task, overrides = find_task("navigation"), [f"init_from={files['pt']}", *words]
    with pytest.raises(ConfigError, match=r"does not fit: .*To continue from it, use preset navrl\."):
        take_network(task, make_config(task, preset, overrides), overrides)


def test_a_checkpoint_of_other_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    convert_checkpoint(tmp_path / "other.pt", tmp_path / "other.fledge")
    for name in ("other.pt", "other.fledge"):
        done = CliRunner().invoke(main, ["train", f"init_from={tmp_path / name}", "--folder", str(tmp_path / "run")])
        assert done.exit_code == 1
        assert "is not NavRL's policy: it has no entry" in done.output


def test_an_env_that_the_weights_do_not_know_is_told_with_the_preset_that_has_it(checkpoint: Path) -> None:
    task = find_task("navigation")
    told = other_env(task, make_config(task, "fast", [*SMALL, f"init_from={checkpoint}"]))
    assert "was trained with env.decimation=1 (this run: 5)" in told
    assert told.endswith("use preset navrl.")
    assert other_env(task, make_config(task, "navrl", [*SMALL, f"init_from={checkpoint}"])) == ""
