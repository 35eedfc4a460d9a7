"""Small worlds for tests: every kind of action, and answers that are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.core.settings import setting
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task


@dataclass
class GunneryConfig:
    num_envs: int = setting(64, at_least=1, resume="restart")
    """Guns."""
    steps: int = setting(8, at_least=1)
    """Decisions per episode."""


class GunneryEnv(TorchEnv):
    """Aim where the target is, and fire when the gun is ready: a dict of a continuous and a masked discrete action.

    Reward: 1 - (aim - target)², and 1 more for a shot. A shot that the mask forbids ends the episode as `jammed`.
    """

    outcomes = {0: "running", 1: "jammed", 2: "done"}

    def __init__(self, cfg: GunneryConfig, device: str = "cpu", seed: int = 0, env_offset: int = 0) -> None:
        super().__init__(cfg, device, seed, env_offset)
        self.max_steps = cfg.steps

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return {
            "allowed": TensorSpec((2,), torch.bool, 0, 1),  # in front of what it is not, to see that order is no matter
            "target": TensorSpec((1,), torch.float32, -1.0, 1.0),
        }

    @property
    def action_spec(self) -> ActionSpec:
        return {
            "fire": TensorSpec((), torch.int64, 0, 1, num_values=2, mask="allowed"),
            "aim": TensorSpec((1,), torch.float32, -2.0, 2.0),
        }

    def begin(self, mask: Tensor) -> None:
        self.put("target", mask, self.uniform(1) * 2 - 1)
        self.put("ready", mask, self.uniform() < 0.5)

    def observe(self) -> dict[str, Tensor]:
        ready = self.state["ready"]
        return {"target": self.state["target"], "allowed": torch.stack([torch.ones_like(ready), ready], dim=-1)}

    def advance(self, action: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        miss = (action["aim"] - self.state["target"]).square().sum(-1)
        jammed = (action["fire"] == 1) & ~self.state["ready"]
        reward = 1.0 - miss + (action["fire"] == 1).float() - 5.0 * jammed.float()
        self.state["target"] = self.uniform(1) * 2 - 1
        self.state["ready"] = self.uniform() < 0.5
        return reward, jammed.to(torch.uint8)


class GunneryTask(Task):
    name, config, env = "gunnery", GunneryConfig, GunneryEnv


task = GunneryTask()
