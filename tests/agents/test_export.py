"""Exported files of the general networks: any batch, any kind of observation, the same actions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.agents.build import build_from_description, describe
from fledge.agents.export import export_agent, write_golden
from fledge.core.errors import FledgeError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task

OBSERVED = {
    "body": TensorSpec((12,), torch.float32),
    "picture": TensorSpec((3, 4), torch.uint8, 0, 255),
    "speed": TensorSpec((), torch.float32),
    "gear": TensorSpec((), torch.int64, num_values=5),
}
STICK = TensorSpec((4,), torch.float32, -1.0, 1.0)
BUTTON = TensorSpec((), torch.int64, num_values=3)


@pytest.mark.parametrize("suffix", [".onnx", ".ts"])
@pytest.mark.parametrize(
    ("algo", "action"),
    [("ppo", STICK), ("ppo", BUTTON), ("ppo", {"stick": STICK, "button": BUTTON}), ("sac", STICK), ("dqn", BUTTON)],
    ids=["ppo", "ppo_choice", "ppo_dict", "sac", "dqn"],
)
def test_a_file_acts_like_its_policy_for_batches_of_any_size(
    algo: str, action: ActionSpec, suffix: str, tmp_path: Path
) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    agent = build_from_description(describe(algo, OBSERVED, action, [16])).eval()
    result = export_agent(agent, tmp_path / f"policy{suffix}")  # compares batches of 1, 7 and 512
    assert result["inputs"] == list(OBSERVED)
    assert result["max_difference"] <= 1e-5


# ---- what travels with the weights ---------------------------------------------------------------------------------------


@dataclass
class BoatConfig:
    num_envs: int = 4


class Boat(TorchEnv):
    decision_s = 0.25

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return {
            "wind": TensorSpec((2,), torch.float32, doc="m/s, world"),
            "depth": TensorSpec((), torch.float32, 0.0, doc="m"),
        }

    @property
    def action_spec(self) -> dict[str, TensorSpec]:
        return {"rudder": TensorSpec((), torch.float32, -1.0, 1.0, doc="share of 30 degrees"), "gear": BUTTON}

    def begin(self, mask: torch.Tensor) -> None:
        self.put("wind", mask, self.normal(2))

    def observe(self) -> dict[str, torch.Tensor]:
        return {"wind": self.state["wind"], "depth": self.state["wind"].norm(dim=-1)}

    def advance(self, action: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.uint8)


BOAT = Task("boat", BoatConfig, Boat)


def boat_policy() -> Any:
    torch.manual_seed(0)
    return BOAT.policy.build(BOAT.policy.describe(BOAT, "ppo", BoatConfig(), BOAT.policy.config())).eval()


def test_any_task_has_a_contract_from_its_specs() -> None:
    contract = BOAT.contract(BoatConfig())
    assert contract["task"] == "boat"
    assert contract["decision_s"] == 0.25
    depth = {"shape": [], "dtype": "float32", "low": 0.0, "high": None, "doc": "m"}
    assert contract["observation"]["depth"] == depth
    assert contract["action"]["rudder"]["doc"] == "share of 30 degrees"
    assert contract["action"]["gear"]["num_values"] == 3
    assert json.loads(json.dumps(contract, allow_nan=False)) == contract


def test_torchscript_carries_the_contract(tmp_path: Path) -> None:
    result = export_agent(boat_policy(), tmp_path / "boat.ts", BOAT.contract(BoatConfig()))
    files = {"contract.json": ""}
    torch.jit.load(str(tmp_path / "boat.ts"), _extra_files=files)
    told = json.loads(files["contract.json"])
    assert told == result["contract"]
    assert told["inputs"] == ["wind", "depth"]
    assert told["outputs"] == ["rudder", "gear"]
    assert told["fledge"]


def test_golden_vectors_hold_inputs_and_outputs_by_name(tmp_path: Path) -> None:
    agent = boat_policy()
    export_agent(agent, tmp_path / "boat.ts")
    seen = agent.example_inputs(9)
    assert write_golden(agent, tmp_path / "boat.ts", seen, tmp_path / "golden.npz") == 9
    golden = np.load(tmp_path / "golden.npz", allow_pickle=False)
    assert set(golden) == {"wind", "depth", "rudder", "gear"}
    assert (golden["wind"] == seen["wind"].numpy()).all()
    assert (golden["rudder"] == agent.act(seen)["rudder"].numpy()).all()


def test_golden_vectors_of_another_policy_are_refused(tmp_path: Path) -> None:
    agent = boat_policy()
    export_agent(agent, tmp_path / "boat.ts")
    with torch.no_grad():
        agent.actor_trunk[0].bias.add_(1.0)
    with pytest.raises(FledgeError, match="give different actions for the same observations"):
        write_golden(agent, tmp_path / "boat.ts", agent.example_inputs(9), tmp_path / "golden.npz")
    assert not (tmp_path / "golden.npz").exists()
