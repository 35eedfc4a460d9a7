"""`fledge deploy` and `fledge.deploy`: folders of any task, and what they refuse to overwrite."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fledge
import fledge_runtime
from fledge.cli import main
from fledge.core.errors import ConfigError, FledgeError
from fledge.core.specs import TensorSpec
from fledge.deployment import goldens, recording
from fledge.deployment.folder import check_folder, replace
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task
from fledge.tasks.loaded_policy import LoadedPolicy
from fledge_runtime import native
from fledge_runtime.contract import GOLDEN, file_hash
from tests.cli.policy_files import write_policy

pytest.importorskip("onnxruntime")
WORLD = ["env.num_maps=2", "env.moving_obstacles=8"]


@dataclass
class BoatConfig:
    num_envs: int = 4
    gru_size: int = 0


class Boat(TorchEnv):
    """A boat whose episodes last seven decisions."""

    decision_s, max_steps = 0.25, 7
    observation_spec = {
        "wind": TensorSpec((2,), torch.float32, doc="m/s, world"),
        "chart": TensorSpec((3, 4), torch.uint8, 0, 255),
    }
    action_spec = {
        "rudder": TensorSpec((), torch.float32, -1.0, 1.0, doc="share of 30 degrees"),
        "gear": TensorSpec((), torch.int64, num_values=3),
    }

    def begin(self, mask: torch.Tensor) -> None:
        self.put("wind", mask, self.normal(2))

    def observe(self) -> dict[str, torch.Tensor]:
        chart = (100 * self.state["wind"].norm(dim=-1)).clamp(0, 255).to(torch.uint8)
        return {"wind": self.state["wind"], "chart": chart[:, None, None].expand(-1, 3, 4)}

    def advance(self, action: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.state["wind"] = self.state["wind"] + 0.1 * action["rudder"][:, None]
        return torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.uint8)


BOAT = Task("boat", BoatConfig, Boat)


def boat(gru_size: int = 0) -> LoadedPolicy:
    torch.manual_seed(0)
    settings = BOAT.policy.config()
    settings.gru_size = gru_size
    agent = BOAT.policy.build(BOAT.policy.describe(BOAT, "ppo", BoatConfig(), settings)).eval()
    return LoadedPolicy("my boat", agent, BOAT, None)


@pytest.mark.parametrize("gru_size", [0, 8])
def test_a_task_of_your_own_is_deployed_as_a_network(gru_size: int, tmp_path: Path) -> None:
    policy = boat(gru_size)
    done = fledge.deploy(policy, tmp_path / "boat", progress=False)
    assert done.contract["raw_inputs"] is None
    assert done.contract["inputs"] == ["wind", "chart", *(["state_in"] if gru_size else [])]
    assert done.contract["reset"] == (["network's state_in"] if gru_size else [])
    deployment = fledge_runtime.load(done.path)
    with pytest.raises(fledge_runtime.ContractError, match=r"observations of its own task .* deployment\.policy\(\)"):
        deployment.pilot()
    ours, agent = deployment.policy(), policy.agent
    agent.reset()
    rng = np.random.default_rng(0)
    for _ in range(5):
        obs = {"wind": rng.normal(size=2).astype(np.float32), "chart": rng.integers(0, 255, (3, 4)).astype(np.uint8)}
        action = agent.act({name: torch.as_tensor(value[None]) for name, value in obs.items()})
        assert isinstance(action, dict)
        outputs = ours.act(obs)
        assert {*outputs} == {"rudder", "gear"}
        np.testing.assert_allclose(outputs["rudder"], action["rudder"][0].numpy(), atol=1e-5)
        assert int(outputs["gear"]) == int(action["gear"][0])


def test_golden_sequences_end_with_their_episodes(tmp_path: Path) -> None:
    path = fledge.deploy(boat(), tmp_path / "boat", progress=False).path
    with np.load(path / GOLDEN) as file:
        lengths, wind = file["length"], file["obs_wind"]
    assert len(lengths) >= 64
    assert lengths.max() <= 7
    assert np.abs(np.diff(wind, axis=0)).max() > 0.5  # from one sequence to the next


def test_every_file_of_a_folder_has_its_hash(tmp_path: Path) -> None:
    done = fledge.deploy(boat(), tmp_path / "boat", progress=False)
    files = {path.relative_to(done.path).as_posix() for path in done.path.rglob("*") if path.is_file()}
    compiled = {name for name in files if "__pycache__" in name}
    assert files - compiled == {"contract.json", *done.contract["files"]}
    assert {"policy.onnx", "golden.npz", "README.md", "fledge_runtime/pilot.py"} <= files
    assert all(file_hash(done.path / name) == found for name, found in done.contract["files"].items())
    assert done.bytes < 2_000_000


def test_the_command_writes_a_folder_and_says_what_to_do(tmp_path: Path) -> None:
    policy = str(write_policy("features", tmp_path / "p.fledge"))
    words = ["deploy", policy, str(tmp_path / "out"), *WORLD, "env.speed_limit=1", "--evaluate", "4"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "64 golden sequences, flown from time_s, position_w" in done.output
    assert "python -m fledge_runtime verify ." in done.output
    contract = fledge_runtime.load(tmp_path / "out").contract
    assert contract["limits"]["speed_m_s"] == 1.0
    assert contract["decision_s"] == pytest.approx(0.08)
    (row,) = contract["evaluated"]
    assert (row["episodes"], row["metric"]) == (4, "success")
    assert row["interval"][0] <= row["value"] <= row["interval"][1]
    text = (tmp_path / "out" / "README.md").read_text()
    assert "at most 1 m/s per axis" in text
    assert "in 4 simulated episodes" in text
    again = CliRunner().invoke(
        main, ["deploy", policy, str(tmp_path / "out"), *WORLD, "--json"], catch_exceptions=False
    )
    assert json.loads(again.stdout)["contract"]["evaluated"] is None
    assert fledge_runtime.load(tmp_path / "out").contract["limits"]["speed_m_s"] == 2.0
    assert {path.name for path in tmp_path.iterdir()} == {"p.fledge", "out"}


def test_a_policy_of_headings_is_deployed_as_a_network(tmp_path: Path) -> None:
    done = fledge.deploy(str(write_policy("grid_q", tmp_path / "q.fledge")), tmp_path / "q", progress=False, num_maps=2)
    assert (done.contract["raw_inputs"], done.contract["outputs"]) == (None, ["value"])


def test_folders_with_other_files_and_runs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ConfigError, match=r"has other files in it, such as notes\.txt: move"):
        fledge.deploy(boat(), tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
    with pytest.raises(ConfigError, match="is a file"):
        fledge.deploy(boat(), tmp_path / "mine" / "notes.txt")


def written_folder(folder: Path) -> Path:
    """Write what an earlier `fledge deploy` and the runtime leave in a folder."""
    (folder / "fledge_runtime" / "native").mkdir(parents=True)
    (folder / "fledge_runtime" / "__pycache__").mkdir()
    listed = ("policy.onnx", "fledge_runtime/pilot.py")
    library = f"fledge_runtime/native/{native.LIBRARY}"
    for name in (*listed, library, f"{library}.sha256", "fledge_runtime/__pycache__/pilot.cpython-311.pyc"):
        (folder / name).write_text("earlier")
    contract = {"format": "fledge deployment", "files": dict.fromkeys(listed, "")}
    (folder / "contract.json").write_text(json.dumps(contract))
    return folder


@pytest.mark.parametrize("name", ["flight-20261118-212737.flog", "fledge_runtime/mine.py", "contract.json.bak"])
def test_an_earlier_folder_is_not_replaced_if_other_files_are_in_it(name: str, tmp_path: Path) -> None:
    check_folder(written_folder(tmp_path / "out"))
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"such as {re.escape(name)}: move them away"):
        fledge.deploy(boat(), tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_the_earlier_folder_is_put_back_if_the_new_one_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (new := tmp_path / "new").mkdir()
    right = os.replace

    def failing(source: Any, target: Any) -> None:
        if source == new:
            raise OSError(28, "No space left on device")
        right(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space left"):
        replace(written_folder(tmp_path / "out"), new)
    assert (tmp_path / "out" / "policy.onnx").read_text() == "earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"new", "out"}


def test_a_folder_that_fails_its_own_check_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = goldens.chain

    def wrong(*args: Any) -> dict[str, np.ndarray]:
        return {name: value + 1 for name, value in right(*args).items()}

    monkeypatch.setattr(goldens, "chain", wrong)
    with pytest.raises(FledgeError, match=r"does not pass the runtime's check.*differs by"):
        fledge.deploy(boat(), tmp_path / "boat")
    assert list(tmp_path.iterdir()) == []


def test_observations_that_the_runtime_computes_otherwise_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge_runtime import observe

    right = observe.Observer.movers
    monkeypatch.setattr(observe.Observer, "movers", lambda *args: 1.1 * right(*args))
    monkeypatch.setattr(recording, "LENGTHS", (4, 4))
    policy = str(write_policy("features", tmp_path / "p.fledge"))
    with pytest.raises(FledgeError, match="dynamic_obstacle differs from the simulator's"):
        fledge.deploy(policy, tmp_path / "out", num_maps=2)


def test_scripted_policies_and_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no weights to export"):
        fledge.deploy("straight", tmp_path / "out")
    done = CliRunner().invoke(main, ["deploy", "fledge-reflex", str(tmp_path / "out"), "env.lidar_azimuths=18"])
    assert done.exit_code == 2
    assert "its weights depend on" in done.output
    assert not (tmp_path / "out").exists()
