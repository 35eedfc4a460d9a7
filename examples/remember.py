"""A policy learns to remember: a cue is shown at the first decision of an episode and asked for at the last.

    fledge train examples/remember.py policy.gru_size=32 --folder runs/remember   about ten seconds on two cores
    fledge eval runs/remember --task examples/remember.py                         right 1.000 of 64 episodes
    fledge train examples/remember.py --folder runs/forget                        without memory: right .25, a guess

The cue is one of four. Until the question, `env.delay` decisions later, all observations are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fledge.core.settings import setting
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task
from fledge.tasks.metrics import TaskMetrics
from fledge.tasks.presets import Presets

CUES = 4


@dataclass
class RememberConfig:
    num_envs: int = setting(128, at_least=1, resume="restart")
    """Number of episodes at once."""
    delay: int = setting(12, at_least=1, at_most=1000, resume="restart")
    """Decisions from the cue to the question."""


class RememberEnv(TorchEnv):
    """An episode is `delay` + 1 decisions; only the last one counts: 1 for the cue's number, else 0."""

    outcomes = {0: "running", 1: "right", 2: "wrong"}
    observation_spec = {
        "cue": TensorSpec((CUES,), torch.float32, 0.0, 1.0, doc="1 at the cue's number, at the first decision only"),
        "question": TensorSpec((), torch.float32, 0.0, 1.0, doc="1 at the last decision"),
    }
    action_spec = TensorSpec((), torch.int64, num_values=CUES, doc="number of the cue")

    def begin(self, mask: Tensor) -> None:
        self.put("cue", mask, (self.uniform() * CUES).long())  # [N]
        self.put("age", mask, torch.zeros_like(self.state["cue"]))  # [N] decisions since the cue

    def observe(self) -> dict[str, Tensor]:
        cue, age = self.state["cue"], self.state["age"]
        shown = F.one_hot(cue, CUES) * (age == 0)[:, None]
        return {"cue": shown.float(), "question": (age == self.cfg.delay).float()}

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        right, asked = action == self.state["cue"], self.state["age"] == self.cfg.delay
        self.state["age"] = self.state["age"] + 1
        return (right & asked).float(), torch.where(asked, torch.where(right, 1, 2), 0)


PPO = {"rollout_steps": 32, "minibatch": 1024, "epochs": 4, "lr": 5e-3}
TABLE = TaskMetrics(labels={"right": "right", "wrong": "wrong"}, unit="episodes")
START = Presets(defaults={"total_frames": 200_000, "ppo": PPO})
task = Task("remember", RememberConfig, RememberEnv, primary_metric="right", metrics=TABLE, presets=START)
