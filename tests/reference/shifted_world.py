"""A world in which pointing at a target succeeds; `shift` moves what counts as the target, and may be hidden."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.core.settings import setting
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task


@dataclass
class ShiftConfig:
    num_envs: int = setting(128, at_least=1, resume="restart")
    """Pointers."""
    shift: float = setting(0.0, at_least=-1, at_most=1)
    """Where the target really is, beside where it is seen."""
    hidden: bool = setting(False, resume="restart")
    """Hide the shift from the policy."""


class ShiftEnv(TorchEnv):
    """Each decision is an episode: success if the action is within 0.3 of target + shift."""

    outcomes = {0: "running", 1: "missed", 2: "success"}
    observation_spec = {"seen": TensorSpec((2,), torch.float32, -1.0, 1.0)}
    action_spec = TensorSpec((1,), torch.float32, -2.0, 2.0)

    def begin(self, mask: Tensor) -> None:
        self.put("target", mask, self.uniform(1) * 2 - 1)

    def observe(self) -> dict[str, Tensor]:
        target = self.state["target"]
        told = torch.full_like(target, 0.0 if self.cfg.hidden else self.cfg.shift)
        return {"seen": torch.cat([target, told], dim=-1)}

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        miss = (action - self.state["target"] - self.cfg.shift).abs().squeeze(-1)
        return 1.0 - miss, torch.where(miss < 0.3, 2, 1).to(torch.uint8)


class ShiftTask(Task):
    name, config, env, primary_metric = "shift", ShiftConfig, ShiftEnv, "success"


task = ShiftTask()
