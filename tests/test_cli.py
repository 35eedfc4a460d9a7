"""The command line as a user meets it."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from fledge.cli import main
from fledge.core.settings import flat_settings
from fledge.storage import CheckpointHistory, save_checkpoint
from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.navigation.task import NavigationTask

TINY = ["env.num_envs=16", "env.num_maps=2", "env.static_obstacles=30", "env.moving_obstacles=8"]
NAVRL = Path(__file__).parents[2] / "shared" / "data" / "navrl_checkpoint.pt"
KEYS = {"success", "collision_static", "collision_moving", "out_of_bounds", "timeout", "episodes", "success_ci95"}


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    policy = FeaturePolicy(hidden=(16,))
    description = {"kind": "features", "hidden": [16], "lidar": [36, 4], "range_m": 4.0}
    path = tmp_path / "small.fledge"
    save_checkpoint({"model": policy.state_dict(), "policy": description, "task": "navigation"}, path)
    return path


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["eval"],
        ["train"],
        ["bench"],
        ["bench", "sim"],
        ["advise"],
        ["export"],
        ["inspect"],
        ["doctor"],
        ["convert"],
        ["envelope"],
    ],
)
def test_help_exists_and_says_something(command: list[str]) -> None:
    done = call(*command, "--help")
    assert done.exit_code == 0
    assert len(done.output) > 150


def test_help_config_lists_every_setting_with_its_meaning() -> None:
    lines = call("train", "--help-config").output.splitlines()
    keys = [line.split("=")[0] for line in lines if not line.startswith(" ")]
    assert {"env.num_envs", "ppo.lr", "env.reward.crash", "save_interval", "wandb.mode"} <= set(keys)
    undocumented = [a for a, b in itertools.pairwise(lines) if not a.startswith(" ") and b.startswith("     (")]
    assert not undocumented


def settings(*words: str) -> dict[str, str]:
    """Lines of --help-config, each with the one below it."""
    done = call(*words, "--help-config")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    return dict(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize("command", ["train", "advise"])
def test_help_config_shows_the_limits_of_a_setting(command: str) -> None:
    shown = settings(command)
    assert shown["ppo.clip=0.2"].endswith("(a number, greater than 0)")
    assert shown["ppo.gamma=0.99"].endswith("(a number, 0 to 1)")
    assert shown["env.num_envs=1024"].endswith("(a whole number, 1 to 16777216)")
    assert shown["env.inside_share=0.3  # preset fast; default 0.5"].endswith("(a number, 0 to 1)")
    assert shown["replay.layout=chunk"].endswith("(text, frame or chunk or episode)")
    assert shown["collect.mode=sync"].endswith("(one of sync or pipelined or halves)")


def test_help_config_shows_what_a_training_would_use_and_where_it_comes_from() -> None:
    shown = settings("train", "navigation", "--preset", "navrl", "ppo.lr=1e-3", "env_dyn.num_obstacles=9")
    assert "ppo.lr=0.001  # given here; default 0.0007" in shown
    assert "env.moving_obstacles=9  # given here; default 80" in shown
    assert "ppo.clip=0.1  # preset navrl; default 0.2" in shown
    assert "policy.kind=navrl  # preset navrl; default features" in shown
    assert "ppo.gamma=0.99" in shown
    assert "algo=dqn  # preset dqn; default ppo" in settings("train", "algo=dqn")


def test_help_config_of_a_run_shows_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: navigation\nppo:\n  lr: 0.125\n")
    shown = settings("train", "--resume", str(tmp_path), "save_interval=7")
    assert f"ppo.lr=0.125  # run {tmp_path}; default 0.0007" in shown
    assert "save_interval=7  # given here; default 50" in shown


def test_help_config_of_an_evaluation_lists_the_world_alone(tmp_path: Path) -> None:
    plain = settings("eval")
    assert all(key.startswith("env.") for key in plain)
    assert "env.decimation=3  # preset default; default 1" in plain
    path = str(write_policy("features", tmp_path / "p.fledge"))
    own = settings("eval", path, "env.speed_limit=1")
    assert f"env.decimation=5  # world of {path}; default 1" in own
    assert "env.speed_limit=1.0  # given here; default 2.0" in own
    assert "env.decimation=1" in settings("eval", path, "--env", "navrl")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "gym:CartPole-v1", "--help-config"],
        ["train", "--help-config", "gym:CartPole-v1"],
        ["train", "--preset", "ppo", "gym:CartPole-v1", "--help-config"],
        ["--debug", "train", "gym:CartPole-v1", "--help-config"],
        ["eval", "--task", "gym:CartPole-v1", "--help-config"],
        ["advise", "gym:CartPole-v1", "--help-config"],
    ],
)
def test_help_config_is_about_the_task_that_was_named(words: list[str]) -> None:
    done = call(*words)
    assert done.exit_code == 0, done.output
    keys = {line.split("=")[0] for line in done.output.splitlines()[::2]}
    assert "env.options" in keys
    assert ("ppo.lr" in keys) == ("eval" not in words)
    assert "env.static_obstacles" not in keys


@pytest.mark.parametrize(
    "words",
    [
        ["train", "ppo.lrr=1"],
        ["train", "--preset", "none"],
        ["eval", "ppo.lr=3"],
        ["eval", "nobody"],
        ["advise", "chess"],
    ],
)
def test_help_config_of_something_wrong_says_so(words: list[str]) -> None:
    done = call(*words, "--help-config")
    assert done.exit_code == 2
    assert done.output.startswith("fledge: ")


def test_eval_prints_rates_that_add_up() -> None:
    done = call("eval", "gap", *TINY, "--episodes", "24", "--json")
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)
    assert set(row) >= KEYS
    assert row["episodes"] == 24
    rates = ("success", "collision_static", "collision_moving", "out_of_bounds", "timeout")
    assert sum(row[k] for k in rates) == pytest.approx(1.0, abs=1e-3)


def test_eval_compares_policies_on_the_same_episodes_and_draws_them(policy_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "flights.png"
    done = call("eval", "straight", str(policy_file), *TINY, "--episodes", "16", "--picture", str(picture))
    assert done.exit_code == 0, done.output
    assert "straight" in done.stdout
    assert "small.fledge" in done.stdout
    assert (tmp_path / "flights_1.png").read_bytes()[:4] == b"\x89PNG"


def test_eval_is_reproducible_for_any_number_of_threads() -> None:
    rows = [json.loads(call("eval", "gap", *TINY, "--episodes", "32", "--json", "--threads", n).stdout) for n in "13"]
    for row in rows:
        del row["wall_seconds"], row["env_steps_per_second"], row["act_ms"]
    assert rows[0] == rows[1]


@pytest.mark.skipif(not NAVRL.is_file(), reason="NavRL's released policy is not here")
def test_eval_flies_navrls_checkpoint_in_its_preset() -> None:
    done = call(
        "eval",
        "--navrl-checkpoint",
        str(NAVRL),
        "env.moving_obstacles=0",
        "env.num_maps=4",
        "--episodes",
        "32",
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["success"] >= 0.75


@pytest.mark.skipif(not NAVRL.is_file(), reason="NavRL's released policy is not here")
def test_navrls_checkpoint_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "released.bin").write_bytes(NAVRL.read_bytes())
    words = ["env.moving_obstacles=0", "env.num_maps=1", "env.max_episode_steps=20", "--episodes", "4", "--json"]
    done = call("eval", "--navrl-checkpoint", str(tmp_path / "released.bin"), *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["episodes"] == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eval"], "Name a policy"),
        (["eval", "nobody"], "There is no policy"),
        (["eval", "gap", "--episodes", "0"], "at least 1"),
        (["eval", "gap", "--env", "moon"], "There is no env preset"),
        (["eval", "gap", "env.num_envs=-3"], "1 to 16777216"),
        (["eval", "gap", "env.numenvs=3"], "Did you mean env.num_envs?"),
        (["eval", "gap", "env.num_envs=many"], "env.num_envs takes a whole number"),
        (["eval", "gap", "env.min_height_m=5"], "env.min_height_m is 5.0, but must be at least 0 and less than 0.5."),
        (["eval", "gap", "ppo.lr=1"], "give settings of the world"),
        (["eval", "gap", "num_envs=1"], "give settings of the world"),
        (["eval", "gap", "env.num_maps=100000000"], "GiB"),
        (["eval", "--navrl-checkpoint", "missing.pt"], "There is no checkpoint"),
        (["eval", "--navrl-checkpoint", __file__], "only plain tensors are allowed"),
        (["export", "gap", "out.onnx"], "nothing to export"),
        (["inspect", "missing.fledge"], "missing.fledge"),
        (["inspect", "."], "holds no checkpoints"),
        (["convert", "missing.pt", "x.fledge"], "no checkpoint at missing.pt"),
        (["convert", __file__, "x.txt"], "must end in one of"),
        (["eval", "gap", "--threads", "0"], "--threads"),
        (["export", "fledge-nav", "x.ts", "ppo.lr=1"], "give settings of the world"),
    ],
)
def test_misuse_gets_one_sentence(words: list[str], sentence: str) -> None:
    done = call(*words)
    assert done.exit_code in (1, 2), done.output
    assert sentence in done.output
    assert "Traceback" not in done.output


BROKEN = {
    "odd": ({"model": 3, "policy": [1], "task": 7}, "its entry 'model' is not what a policy has there"),
    "hollow": ({"model": {}, "policy": {}, "task": "navigation"}, "its entry 'model' is not"),
    "misfit": (
        {
            "model": {"a": torch.ones(2)},
            "policy": {"kind": "features", "hidden": [8], "lidar": [36, 4], "range_m": 4.0},
            "task": "navigation",
        },
        "The weights in",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", [["eval"], ["export", "p.ts"], ["export", "p.fledge", "env.speed_limit=1"]])
def test_a_file_that_is_no_policy_gets_one_sentence(name: str, command: list[str], tmp_path: Path) -> None:
    state, sentence = BROKEN[name]
    save_checkpoint(state, tmp_path / "p0.fledge")
    rest = [word if "=" in word else str(tmp_path / word) for word in command[1:]]
    done = call(command[0], str(tmp_path / "p0.fledge"), *rest)
    assert done.exit_code == 1, done.output
    assert sentence in done.output


def test_a_policy_file_is_not_written_for_a_world_that_its_weights_do_not_fit(tmp_path: Path) -> None:
    done = call("export", "fledge-nav", str(tmp_path / "p.fledge"), "env.lidar_azimuths=12")
    assert done.exit_code == 2
    assert "its weights depend on it" in done.output
    assert not (tmp_path / "p.fledge").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["export", "fledge-nav", "FILE/p.ts"],
        ["export", "fledge-nav", "FILE/p.fledge"],
        ["export", "fledge-nav", "/proc/p.ts"],
        ["export", "fledge-nav", "p.ts", "--golden", "FILE/g.npz"],
        ["convert", "POLICY", "FILE/p.pt"],
        ["eval", "fledge-nav", "--picture", "FILE/p.png"],
    ],
)
def test_a_place_that_cannot_be_written_gets_one_sentence(
    words: list[str], policy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    done = call(*(str(policy_file) if word == "POLICY" else word for word in words))
    assert done.exit_code == 1, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert re.search(r"cannot be (made|used)|could not be written", done.output)


KINDS = {
    "features": {"kind": "features", "hidden": [16], "lidar": [36, 4], "range_m": 4.0},
    "squashed": {"kind": "squashed", "hidden": [16], "lidar": [36, 4], "range_m": 4.0},
    "grid_q": {"kind": "grid_q", "hidden": [16], "grid_size": 32, "headings": 8},
}


WORLDS = {
    "features": NavigationConfig(decimation=5),
    "squashed": NavigationConfig(decimation=5),
    "grid_q": NavigationConfig(
        decimation=5, grid_map=True, grid_size=32, action_form=ActionForm.headings, num_headings=8
    ),
}


def write_policy(kind: str, path: Path, world: bool = True) -> Path:
    torch.manual_seed(0)
    entries = {"model": NavigationTask().build_policy(KINDS[kind]).state_dict(), "policy": KINDS[kind]}
    entries |= {"world": {"env": flat_settings(WORLDS[kind]), "decision_s": 0.08}} if world else {}
    save_checkpoint({**entries, "task": "navigation"}, path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_export_writes_files_that_fly_the_same(kind: str, tmp_path: Path) -> None:
    done = call("export", str(write_policy(kind, tmp_path / "p.fledge")), str(tmp_path / "p.ts"), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["max_difference"] <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_policy_flies_in_the_world_it_needs(kind: str, tmp_path: Path) -> None:
    done = call("eval", str(write_policy(kind, tmp_path / "p.fledge")), *TINY, "--episodes", "16", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["episodes"] == 16


def test_a_policy_that_does_not_tell_its_world_flies_in_the_default_one_if_it_can(tmp_path: Path) -> None:
    can, cannot = (str(write_policy(kind, tmp_path / f"{kind}.fledge", world=False)) for kind in ("features", "grid_q"))
    assert call("eval", can, *TINY, "--episodes", "4").exit_code == 0
    done = call("eval", cannot, *TINY, "--episodes", "4")
    assert done.exit_code == 2
    assert "reads grid_map, which this env does not observe" in done.output


def test_eval_says_how_the_world_differs_from_where_a_policy_was_trained(tmp_path: Path) -> None:
    path = str(write_policy("features", tmp_path / "p.fledge"))
    plain = call("eval", path, "env.num_maps=2", "env.num_envs=4", "--episodes", "4")
    assert plain.exit_code == 0, plain.output
    words = ["env.num_maps=2", "env.num_envs=4", "env.speed_limit=1.5"]
    changed = call("eval", path, *words, "--episodes", "4")
    assert "env.speed_limit=1.5 (trained with 2.0)" in changed.stderr
    assert "speed_limit" not in plain.stderr
    row = json.loads(call("eval", path, *words, "--episodes", "4", "--json").stdout)
    assert row["changed"]["env.speed_limit"] == {"trained": 2.0, "flown": 1.5}


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("features", "env.lidar_azimuths=18"),
        ("features", "env.lidar_range_m=6"),
        ("features", "env.action_form=headings"),
        ("grid_q", "env.grid_size=64"),
        ("grid_q", "env.num_headings=4"),
    ],
)
def test_eval_refuses_a_world_that_the_weights_do_not_fit(tmp_path: Path, kind: str, word: str) -> None:
    done = call("eval", str(write_policy(kind, tmp_path / "p.fledge")), *TINY, word, "--episodes", "4")
    assert done.exit_code == 2
    assert f"cannot fly with {word}" in done.output.replace("\n", " ")


def test_eval_lets_a_policy_fly_with_another_observation_that_it_does_not_read(tmp_path: Path) -> None:
    path = str(write_policy("grid_q", tmp_path / "p.fledge"))
    assert call("eval", path, *TINY, "env.lidar_azimuths=18", "--episodes", "4").exit_code == 0


def test_export_tells_the_contract_of_the_world_it_is_given(tmp_path: Path) -> None:
    path = str(write_policy("features", tmp_path / "p.fledge"))
    told = json.loads(call("export", path, str(tmp_path / "p.ts"), "--json").stdout)["contract"]
    assert told["decision_s"] == pytest.approx(0.08)
    assert told["observation"]["lidar"]["range_m"] == 4.0
    done = call("export", path, str(tmp_path / "p.ts"), "env.decimation=2", "env.speed_limit=1", "--json")
    told = json.loads(done.stdout)["contract"]
    assert told["decision_s"] == pytest.approx(0.032)
    assert told["speed_limit_m_s"] == 1.0
    refused = call("export", path, str(tmp_path / "p.ts"), "env.lidar_azimuths=18")
    assert refused.exit_code == 2
    assert "its weights depend on it" in refused.output


def test_export_writes_golden_vectors_of_a_flight(tmp_path: Path) -> None:
    path, golden = str(write_policy("features", tmp_path / "p.fledge")), tmp_path / "golden.npz"
    words = ["env.num_maps=2", "env.moving_obstacles=8", "--golden"]
    done = call("export", path, str(tmp_path / "p.ts"), *words, str(golden))
    assert done.exit_code == 0, done.output
    assert "cases to test it with" in done.output
    assert set(np.load(golden)) == {"state", "lidar", "dynamic_obstacle", "action"}
    refused = call("export", path, str(tmp_path / "p.ts"), *words, str(tmp_path / "golden.csv"))
    assert refused.exit_code == 2
    assert "golden vectors go into an .npz" in refused.output


def test_export_refuses_other_endings(policy_file: Path, tmp_path: Path) -> None:
    wrong = call("export", str(policy_file), str(tmp_path / "p.txt"))
    assert wrong.exit_code == 2
    assert "must end in" in wrong.output


def test_a_policy_file_holds_the_same_weights(policy_file: Path, tmp_path: Path) -> None:
    done = call("export", str(policy_file), str(tmp_path / "copy.fledge"), "--json")
    assert json.loads(done.stdout)["max_difference"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_export_flies_the_same(kind: str, tmp_path: Path) -> None:
    done = call("export", str(write_policy(kind, tmp_path / "p.fledge")), str(tmp_path / "p.onnx"), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["max_difference"] <= 1e-5


# ---- inspect, convert --------------------------------------------------------------------------------------------------


def test_convert_refuses_one_file_as_source_and_target_and_says_what_is_lost(tmp_path: Path) -> None:
    CheckpointHistory(tmp_path).save({"model": {"w": torch.ones(3)}}, step=4, metric=0.5)
    path = tmp_path / "checkpoint_000000004.fledge"
    before = path.read_bytes()
    done = call("convert", str(path), str(path))
    assert done.exit_code == 2
    assert "is both source and target" in done.output
    assert path.read_bytes() == before
    assert "step and metric are not kept" in call("convert", str(path), str(tmp_path / "w.safetensors")).output
    assert "not kept" not in call("convert", str(path), str(tmp_path / "w.fledge")).output


@pytest.mark.parametrize("name", ["policy.onnx", "policy.ts", "golden.npz"])
def test_an_exported_policy_is_not_flown(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    done = call("eval", str(tmp_path / name))
    assert done.exit_code == 2
    assert "is an exported policy, which cannot be flown here: give the run or a .fledge." in done.output


def test_inspect_and_convert_round_trip(policy_file: Path, tmp_path: Path) -> None:
    listed = json.loads(call("inspect", str(policy_file), "--json").stdout)
    assert any("trunk" in row["name"] for row in listed["tensors"])
    done = call("convert", str(policy_file), str(tmp_path / "p.pt"))
    assert re.fullmatch(rf"{tmp_path / 'p.pt'}: [\d,]+ bytes, from {policy_file}, which has [\d,]+\.\n", done.output)
    saved = torch.load(tmp_path / "p.pt", weights_only=True)
    assert saved["policy"]["kind"] == "features"
    for name in ("p.pt.lz4", "p.safetensors"):
        assert call("convert", str(policy_file), str(tmp_path / name)).exit_code == 0
    for name in ("p.pt", "p.pt.lz4", "p.safetensors"):
        done = call("inspect", str(tmp_path / name))
        assert done.exit_code == 0, done.output
        assert "trunk.0.weight" in done.output


def test_inspect_knows_shipped_policies_and_never_cuts_a_name() -> None:
    done = call("inspect", "fledge-nav")
    assert done.exit_code == 0, done.output
    assert "task navigation" in done.output
    assert "env.decimation=4" in done.output
    names = {line.split()[0] for line in done.output.splitlines() if line.startswith("model/")}
    assert {"model/value_norm.mean_avg", "model/value_norm.square_avg", "model/trunk.0.weight"} <= names


def test_inspect_shows_a_runs_step_metric_settings_and_checkpoints(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path / "run" / "checkpoints", keep_whole=1)
    config = {"task": "navigation", "ppo.lr": 0.125, "ppo.clip": 0.2, "env.speed_limit": 1.5}
    for step in (10, 20):
        facts = {"iteration": step, "frames": step * 1000, "seconds": 60.0, "task": "navigation", "config": config}
        history.save(
            {"model": {"w": torch.ones(3)}, "optimizer": {"m": torch.ones(3)}, **facts}, step, metric=step / 40
        )
    done = call("inspect", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    assert "task navigation, step 20, metric 0.5, 20,000 decisions in 1.0 minutes" in done.output
    assert "ppo.lr=0.125" in done.output
    assert "env.speed_limit=1.5" in done.output
    assert "ppo.clip" not in done.output
    assert re.search(r"checkpoint_0*10\.fledge +10 +0\.250 +weights", done.output)
    assert re.search(r"checkpoint_0*20\.fledge +20 +0\.500 +whole", done.output)
    row = json.loads(call("inspect", str(tmp_path / "run"), "--json").stdout)
    assert (row["step"], row["metric"], len(row["checkpoints"])) == (20, 0.5, 2)
    assert row["config"]["ppo.lr"] == 0.125


def test_inspect_shows_values_and_metadata_and_nothing_that_steers_a_terminal(tmp_path: Path) -> None:
    state = {"w\x1b[2J": torch.ones(2), "seed": 7, "deep": {"lr": [0.1, 0.2]}, "note": "a\x1b]0;x\x07\u202eb" * 50}
    metadata = {"success": 0.5, "who\n": "x\ry"}
    path = save_checkpoint(state, tmp_path / "a", metadata=metadata)
    done = call("inspect", str(path))
    assert done.exit_code == 0, done.output
    for line in ("  seed = 7", "  deep/lr = [0.1, 0.2]", "  success = 0.5", "  who\\n = 'x\\ry'"):
        assert line in done.output.splitlines()
    assert all(character.isprintable() or character == "\n" for character in done.output)
    assert max(map(len, done.output.splitlines())) < 250
    found = json.loads(call("inspect", str(path), "--json").stdout)
    assert (found["values"]["seed"], found["metadata"]["success"]) == (7, 0.5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "navigaton"], "Did you mean navigation?"),
        (["train", "navigation", "env=64"], "env takes a preset (crossing, default,"),
        (["train", "navigation", "env.num_envs"], "a setting needs a value: env.num_envs=VALUE"),
        (["train", "navigation", ""], "'navigation' and '' came"),
        (["train", "navigation", "env.num_envs=1e99"], "must be 1 to 16777216"),
        (["train", "navigation", "seed=-1"], "must be 0 to 9223372036854775807"),
    ],
)
def test_a_slip_gets_a_sentence_that_helps(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.parametrize(("chosen", "left"), [(None, "None"), ("PASSIVE", "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_a_benchmark_gives_baselines_their_own_openmp_unless_the_user_chose(chosen: str | None, left: str) -> None:
    """Waiting threads sleep wherever Fledge is imported; a baseline must not be slowed down by that."""
    code = "import os, benchmarks.commands as c; print(os.environ['OMP_WAIT_POLICY']); c.let_threads_spin(); "
    code += "print(os.environ.get('OMP_WAIT_POLICY'))"
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | (
        {"OMP_WAIT_POLICY": chosen} if chosen else {}
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [chosen or "PASSIVE", left]


def test_threads_may_be_given_for_each_level() -> None:
    env = os.environ | {"OMP_NUM_THREADS": "2,1"}
    code = "import fledge.storage; from fledge.core.machine import torch_threads; print(torch_threads())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


def test_the_package_itself_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "fledge", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("fledge")
