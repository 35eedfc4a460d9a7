"""Exported files of the general networks: any batch, any kind of observation, the same actions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.agents.build import build_from_description, describe
from fledge.agents.export import export_agent
from fledge.core.specs import ActionSpec, TensorSpec

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
