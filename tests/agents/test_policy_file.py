"""A policy as a file: what it must hold, what older ones lack, and what is no policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.agents import build
from fledge.agents.policy_file import (
    build_policy,
    is_past_self,
    load_weights,
    past_self_file,
    read_policy,
    write_policy,
)
from fledge.core.errors import ConfigError, FormatError
from fledge.core.specs import TensorSpec
from fledge.storage import CheckpointHistory, save_checkpoint
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task

NEEDED: dict[str, Any] = {"model": {"w": torch.arange(3.0)}, "policy": {"kind": "features"}, "task": "navigation"}
WORLD = {"env": {"num_envs": 7, "reward.near": 0.25}, "decision_s": 0.08}
CONFIG = {"seed": 3, "env.num_envs": 7, "env.reward.near": 0.25, "environment": 1}


def saved(path: Path, **more: Any) -> Path:
    save_checkpoint({**NEEDED, "frames": 12, "ranks": [{"rng": torch.zeros(5)}], **more}, path)
    return path


def test_a_file_tells_its_world(tmp_path: Path) -> None:
    entries = read_policy(saved(tmp_path / "p.fledge", world=WORLD, config=CONFIG))
    assert set(entries) == {"model", "policy", "task", "world"}
    assert entries["world"] == WORLD
    assert entries["model"]["w"].tolist() == [0.0, 1.0, 2.0]


def test_the_world_of_an_older_file_is_the_env_of_its_config(tmp_path: Path) -> None:
    entries = read_policy(saved(tmp_path / "p.fledge", config=CONFIG))
    assert entries["world"] == {"env": WORLD["env"], "decision_s": None}


def test_a_file_that_tells_no_world_is_a_policy_all_the_same(tmp_path: Path) -> None:
    assert set(read_policy(saved(tmp_path / "p.fledge"))) == {"model", "policy", "task"}


@pytest.mark.parametrize("more", [{"world": WORLD, "config": CONFIG}, {"config": CONFIG}, {}])
def test_a_runs_folder_is_read_like_a_file(tmp_path: Path, more: dict[str, Any]) -> None:
    history = CheckpointHistory(tmp_path / "run" / "checkpoints")
    history.save({**NEEDED, "iteration": 1, **more}, 1).wait()
    assert read_policy(tmp_path / "run").keys() == read_policy(saved(tmp_path / "p.fledge", **more)).keys()


@pytest.mark.parametrize("missing", sorted(NEEDED))
def test_a_file_without_what_is_needed_holds_no_policy(tmp_path: Path, missing: str) -> None:
    save_checkpoint({k: v for k, v in NEEDED.items() if k != missing} | {"world": WORLD}, tmp_path / "p.fledge")
    with pytest.raises(FormatError, match="holds no policy"):
        read_policy(tmp_path / "p.fledge")


@pytest.mark.parametrize("state", [5, "text", [1, 2], torch.zeros(3), {}, {1: 2}], ids=repr)
def test_a_file_of_something_else_holds_no_policy(tmp_path: Path, state: Any) -> None:
    save_checkpoint(state, tmp_path / "p.fledge")
    with pytest.raises(FormatError, match="holds no policy"):
        read_policy(tmp_path / "p.fledge")


def test_a_folder_without_checkpoints_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run"):
        read_policy(tmp_path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    write_policy({**NEEDED, "world": WORLD, "frames": 3}, tmp_path / "p.fledge")
    entries = read_policy(tmp_path / "p.fledge")
    assert torch.equal(entries.pop("model")["w"], NEEDED["model"]["w"])
    assert entries == {"policy": NEEDED["policy"], "task": "navigation", "world": WORLD}


@pytest.mark.parametrize("name", find_task("navigation").policy.shipped())
def test_every_shipped_policy_loads(name: str) -> None:
    policy = load_policy(name)
    assert policy.task.name == "navigation"
    assert set(policy.agent.observes) <= {"state", "lidar", "dynamic_obstacle", "plan"}


def make_league(run: Path, written: bool) -> None:
    """A run with one pilot and two past selves; `written`: of which the first is no longer met."""
    selves = {str(n): {"w": torch.full((3,), float(n))} for n in ((2,) if written else (1, 2))}
    league = {"names": ["crank", "self 1", "self 2"], "selves": selves, **({"pilots": 1} if written else {})}
    CheckpointHistory(run / "checkpoints").save({**NEEDED, "world": WORLD, "curriculum": league}, 1).wait()
    for number in (1, 2) if written else ():
        past_self_file(run, number).parent.mkdir(exist_ok=True)
        write_policy(
            {**NEEDED, "world": WORLD, "model": {"w": torch.full((3,), float(number))}}, past_self_file(run, number)
        )


@pytest.mark.parametrize("written", [False, True])
def test_a_past_self_is_found_by_its_number_in_runs_of_any_age(tmp_path: Path, written: bool) -> None:
    run = tmp_path / "run"
    make_league(run, written)
    for number in (1, 2):
        entries = read_policy(tmp_path / f"run#{number}")
        assert entries["model"]["w"].tolist() == [float(number)] * 3
        assert entries["world"] == WORLD
    for number in ("0", "3", "", "x", "-1"):
        with pytest.raises(ConfigError, match=r"an earlier policy that .* keeps as an opponent, 1 to 2"):
            read_policy(tmp_path / f"run#{number}")
    assert not is_past_self(tmp_path / "nobody#1")
    assert not is_past_self(tmp_path / "#1")


def test_a_past_self_whose_file_is_gone_is_told(tmp_path: Path) -> None:
    make_league(tmp_path / "run", written=True)
    past_self_file(tmp_path / "run", 1).unlink()
    with pytest.raises(ConfigError, match=r"self_1\.fledge does not exist: choose another"):
        read_policy(tmp_path / "run#1")


def test_weights_that_are_no_numbers_are_refused() -> None:
    layer = torch.nn.Linear(2, 1)
    spoiled = {name: value * float("nan") for name, value in layer.state_dict().items()}
    with pytest.raises(FormatError, match=r"weights in p\.fledge contain NaN \(in weight\)"):
        load_weights(layer, spoiled, "p.fledge")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        ([10**7, 10**7], r"is \(8, 3\) in the file, but \(10000000, 3\) in the network"),
        ([10**400], "cannot be built"),
        ([-3], "cannot be built"),
        ([8] * 2000, "hidden has more than 1000 items"),
        ([], "cannot be built"),
    ],
)
def test_a_file_cannot_ask_for_a_network_larger_than_its_weights(hidden: list[int], sentence: str) -> None:
    observation, action = {"x": TensorSpec((3,), torch.float32)}, TensorSpec((2,), torch.float32, -1.0, 1.0)
    description = build.describe("ppo", observation, action, [8, 8])
    built: list[torch.device] = []

    def make(described: Mapping[str, Any]) -> Any:
        policy = build.build_from_description(described)
        built.append(next(policy.parameters()).device)
        return policy

    good = {"policy": description, "model": build.build_from_description(description).state_dict()}
    build_policy(make, good, "a file")
    assert [device.type for device in built] == ["meta", "cpu"]
    with pytest.raises(FormatError, match=sentence):
        build_policy(make, {**good, "policy": {**description, "hidden": hidden}}, "a file")
    assert {device.type for device in built[2:]} <= {"meta"}


def test_weights_that_are_no_tensors_do_not_match_the_network() -> None:
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(FormatError, match="weight is not a tensor"):
        load_weights(layer, {**layer.state_dict(), "weight": 3}, "p.fledge")  # type: ignore[arg-type]
