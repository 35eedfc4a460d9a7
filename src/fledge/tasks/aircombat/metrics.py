"""How duels are counted and labelled: the task's `metrics` part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fledge.envs.base import TensorEnv
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import duel_of
from fledge.tasks.metrics import TaskMetrics


class AircombatMetrics(TaskMetrics):
    """Outcomes of duels, by how they began."""

    unit = "duels"
    labels = {"win": "win", "loss": "loss", "draw": "both die", "spent": "spent", "timeout": "time"}
    classes = tuple(kind.value for kind in Scenario if kind is not Scenario.mixed)

    def classify(self, env: TensorEnv) -> Tensor:
        """By how the fight began."""
        duel = duel_of(env)
        names = list(Scenario)
        index = torch.tensor([self.classes.index(kind.value) if kind.value in self.classes else 0 for kind in names])
        kinds = index[duel.state["kind"].cpu().long()]
        return kinds.repeat_interleave(env.num_envs // duel.num_duels)

    def env_facts(self, cfg: AircombatConfig) -> dict[str, Any]:
        return {"scenario": cfg.scenario.value, "opponent": cfg.opponent or "self-play"}

    def env_label(self, cfg: AircombatConfig) -> str:
        return f"{cfg.scenario.value} vs {cfg.opponent}" if cfg.opponent else cfg.scenario.value
