"""`fledge eval` as a user calls it."""

import json
from pathlib import Path

import pytest

from tests.cli.policy_files import KINDS, TINY, call, write_policy

NAVRL = Path(__file__).parents[3] / "shared" / "data" / "navrl_checkpoint.pt"
KEYS = {"success", "collision_static", "collision_moving", "out_of_bounds", "timeout", "episodes", "success_ci95"}


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
    assert (tmp_path / "flights_straight.png").read_bytes()[:4] == b"\x89PNG"


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


@pytest.mark.skipif(not NAVRL.is_file(), reason="NavRL's released policy is not here")
def test_navrls_checkpoint_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "released.bin").write_bytes(NAVRL.read_bytes())
    words = ["env.moving_obstacles=0", "env.num_maps=1", "env.max_episode_steps=20", "--episodes", "4", "--json"]
    done = call("eval", "--navrl-checkpoint", str(tmp_path / "released.bin"), *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["episodes"] == 4


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


@pytest.mark.parametrize("name", ["policy.onnx", "policy.ts", "golden.npz"])
def test_an_exported_policy_is_not_flown(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    done = call("eval", str(tmp_path / name))
    assert done.exit_code == 2
    assert "is an exported policy, which cannot be loaded here: give the run or a .fledge file." in done.output


def test_movers_lists_numbers_of_moving_obstacles() -> None:
    words = [*TINY[:3], "--episodes", "4", "--json"]
    rows = json.loads(call("eval", "straight", "--movers", "0,8", *words).stdout)
    assert [row["moving_obstacles"] for row in rows] == [0, 8]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--movers", "0,many"], "env.moving_obstacles takes a whole number"),
        (["--movers", "0", "--vary", "env.speed_limit=1"], "pass --movers or --vary, not both"),
        (["--vary", "env.speed_limit"], "must be env.key=value,value"),
    ],
)
def test_values_to_vary_are_checked(words: list[str], sentence: str) -> None:
    done = call("eval", "straight", *TINY, *words, "--episodes", "4")
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_options_of_a_task_are_in_the_help() -> None:
    assert "--movers" in call("eval", "--help").output
    assert "--navrl-checkpoint" in call("eval", "--help").output
    assert "--navrl-checkpoint" in call("benchmark", "--help").output
    assert "--movers" not in call("benchmark", "--help").output
