"""A policy carries its world: where it flies, what may be changed, and what its weights cannot bear."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError, FormatError
from fledge.evaluation.env_config import eval_env, tell_differences
from fledge.evaluation.export import export_policy
from fledge.storage import load_checkpoint, save_checkpoint
from fledge.tasks.policy_loader import load_policy, policy_from_state
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks
from tests.reference.toy_worlds import task as gunnery

WORDS = ["env.num_envs=8", "env.num_maps=2", "env.static_obstacles=20", "env.moving_obstacles=4", "ppo.rollout_steps=4"]
WORDS += ["ppo.minibatch=16", "total_frames=32", "tensorboard=false", "env.lidar_range_m=6.0", "env.decimation=4"]


@pytest.fixture(scope="module")
def far_sighted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run whose LiDAR reaches 6 m."""
    folder = tmp_path_factory.mktemp("far") / "run"
    train(make_config("navigation", "fast", WORDS), folder, Ranks())
    return str(folder)


def test_a_run_is_flown_in_the_world_it_was_trained_in(far_sighted: str) -> None:
    policy = load_policy(far_sighted)
    assert policy.env is not None
    assert policy.env.decision_s == pytest.approx(4 * 0.016)
    cfg = eval_env(policy).cfg
    assert (cfg.lidar_range_m, cfg.decimation, cfg.static_obstacles) == (6.0, 4, 20)
    # but judged as all are: every map has its movers, and starts are on the edges
    assert (cfg.movers_cycle, cfg.starts.name) == ([1.0], "edges")


def test_what_the_weights_depend_on_cannot_be_changed(far_sighted: str) -> None:
    policy = load_policy(far_sighted)
    for word in ("env.lidar_azimuths=72", "env.lidar_range_m=4.0", "env.lidar_elevations_deg=[0,10]"):
        with pytest.raises(ConfigError, match=r"cannot fly with env\.lidar.*its weights depend on"):
            eval_env(policy, None, [word])
    with pytest.raises(ConfigError, match=r"lidar_range_m=4.0 \(trained with 6.0\)"):
        eval_env(policy, None, ["env.lidar_range_m=4"])
    # an observation that it does not read may come or go
    assert eval_env(policy, None, ["env.grid_map=true"]).cfg.grid_map


def test_a_preset_changes_what_it_names_but_not_the_sensors_and_the_decision_rate_of_a_policy(far_sighted: str) -> None:
    policy = load_policy(far_sighted)
    cfg = eval_env(policy, "crossing").cfg
    assert (cfg.starts.name, cfg.walls, cfg.static_obstacles, cfg.moving_obstacles) == ("crossing", True, 350, 80)
    assert (cfg.lidar_range_m, cfg.decimation) == (6.0, 4)  # its sensors and its decision rate
    assert eval_env(policy, "crossing", ["env.moving_obstacles=0"]).cfg.moving_obstacles == 0
    for preset in ("default", "navrl"):  # which name another decision rate
        assert eval_env(policy, preset).cfg.decimation == 4
    assert eval_env(policy, "navrl", ["env.decimation=1"]).cfg.decimation == 1
    assert eval_env(load_policy("straight"), "navrl").cfg.decimation == 1  # it has no rate of its own


def test_what_was_overridden_is_said(far_sighted: str) -> None:
    flight = eval_env(load_policy(far_sighted), None, ["env.decimation=2", "env.moving_obstacles=4"])
    assert tell_differences("it", flight.changed) == "it: flown with env.decimation=2 (trained with 4)"
    unset = {"env.world": {"trained": "", "flown": "rooms"}}
    assert tell_differences("it", unset) == "it: flown with env.world=rooms (trained with none)"
    assert not eval_env(load_policy(far_sighted)).changed


def test_the_command_line_says_it_too(far_sighted: str) -> None:
    words = ["eval", far_sighted, "env.decimation=2", "env.max_episode_steps=40", "--episodes", "4"]
    spoken = CliRunner().invoke(main, words)
    assert "flown with" in spoken.stderr
    assert "env.decimation=2 (trained with 4)" in spoken.stderr
    row = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert row["changed"]["env.decimation"] == {"trained": 4, "flown": 2}


def test_a_pilot_flies_beside_a_run_in_its_world(far_sighted: str) -> None:
    run, pilot = load_policy(far_sighted), load_policy("straight")
    assert pilot.env is None
    assert eval_env(pilot, home=run.env).cfg == eval_env(run).cfg


def test_settings_of_training_do_not_fit_an_evaluation(far_sighted: str) -> None:
    with pytest.raises(ConfigError, match="only env settings can be changed here"):
        eval_env(load_policy(far_sighted), None, ["ppo.lr=0.1"])


def test_the_shipped_policy_says_where_it_flies() -> None:
    world = load_policy("fledge-nav").env
    assert world is not None
    assert world.decision_s == pytest.approx(0.064)
    assert (world.settings["starts"], world.settings["walls"], world.settings["plan"]) == ("crossing", True, True)
    reflex = load_policy("fledge-reflex").env
    assert reflex is not None
    assert reflex.decision_s == pytest.approx(0.048)


def test_a_policy_file_keeps_the_world_and_can_be_given_another(far_sighted: str, tmp_path: Path) -> None:
    export_policy(far_sighted, tmp_path / "same.fledge")
    export_policy(far_sighted, tmp_path / "quick.fledge", overrides=["env.decimation=1"])
    same, quick = (load_policy(str(tmp_path / f"{name}.fledge")).env for name in ("same", "quick"))
    assert same is not None
    assert quick is not None
    assert (same.settings["decimation"], quick.settings["decimation"]) == (4, 1)
    assert quick.decision_s == pytest.approx(0.016)


def test_an_older_file_without_a_world_tells_it_by_its_config(far_sighted: str, tmp_path: Path) -> None:
    newest = sorted((Path(far_sighted) / "checkpoints").glob("*.fledge"))[-1]
    state = load_checkpoint(newest)
    del state["world"]
    save_checkpoint(state, tmp_path / "old")
    world = load_policy(str(tmp_path / "old.fledge")).env
    assert world is not None
    assert world.settings["lidar_range_m"] == 6.0


def test_a_policy_of_code_needs_its_task_named(tmp_path: Path) -> None:
    cfg = make_config(gunnery, "", ["env.num_envs=4", "ppo.rollout_steps=4", "ppo.minibatch=8", "total_frames=16"])
    train(cfg, tmp_path / "run", Ranks(), task=find_task("tests.reference.toy_worlds:task"))
    with pytest.raises(ConfigError, match=r"is code and is not run unless you name it: add --task tests.reference"):
        load_policy(str(tmp_path / "run"))
    named = load_policy(str(tmp_path / "run"), find_task("tests.reference.toy_worlds:task"))
    assert named.task.name == "gunnery"
    with pytest.raises(ConfigError, match=r"belongs to the task tests.reference.toy_worlds:task, not to navigation"):
        load_policy(str(tmp_path / "run"), find_task("navigation"))


def test_a_state_without_a_policy_is_refused() -> None:
    with pytest.raises(FormatError, match="holds no policy"):
        policy_from_state({"weights": 1}, "something")
