"""Metrics of flights besides their outcome.

    mean_speed        m/s                                          over all time flown
    outside_share     share of the time over bare ground, outside the forest's ±20 m
    control_effort    m/s², mean change of the commanded velocity per second
    clearance         m to the nearest surface in reach of the sensors, mean over all time flown
    least_clearance   m, the smallest of a flight, mean over flights that reached their goal
    detour            path length over the straight line from start to goal, mean over the same flights; a little less
                      than 1 when flying straight, since flights end within the goal's radius

Clearances are what the drone observes: beams and the five nearest movers, at decisions, at most the sensors' range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fledge.envs.base import Action, TensorEnv
from fledge.tasks.base import EpisodeMetrics
from fledge.tasks.navigation.config import FOREST_HALF_M, ActionForm
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.shapes import widths
from fledge.tasks.navigation.physics.structs import Outcome
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE


class FlightMetrics(EpisodeMetrics):
    """Follows all drones of an env at once; sums stay on its device until `figures`."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def begin(self, env: TensorEnv) -> None:
        assert isinstance(env, NavigationEnv)
        self.env = env
        zeros = torch.zeros(env.num_envs, device=env.device)
        self.path, self.least = zeros.clone(), torch.full_like(zeros, math.inf)
        self.command: Tensor | None = None
        self.begun = torch.ones_like(zeros, dtype=torch.bool)  # no command before this one in the episode

    def before_step(self, obs: Mapping[str, Tensor], action: Action, counted: Tensor) -> None:
        state, seconds = self.env.state, self.env.decision_s
        speed = state["vel"].norm(dim=-1)
        self.straight = (state["goal"] - state["start"]).norm(dim=-1)
        self.path += speed * seconds
        gap = clearance(obs, self.env.cfg.lidar_range_m)
        self.least = torch.minimum(self.least, gap)
        command = self._command(action)
        if self.command is not None:
            goes_on = counted & ~self.begun
            self._add("change", (command - self.command).norm(dim=-1), goes_on)
            self._add("commands", torch.full_like(speed, seconds), goes_on)
        self.command = command
        self.begun.zero_()
        outside = state["pos"][:, :2].abs().amax(dim=-1) > FOREST_HALF_M
        for name, value in (
            ("decisions", torch.ones_like(speed)),
            ("speed", speed),
            ("outside", outside),
            ("gap", gap),
        ):
            self._add(name, value, counted)

    def after_step(self, outcome: Tensor, counted: Tensor) -> None:
        arrived = counted & (outcome == int(Outcome.SUCCESS))
        self._add("arrived", torch.ones_like(self.path), arrived)
        self._add("detour", self.path / self.straight.clamp(min=1e-6), arrived)
        self._add("least", self.least, arrived)
        over = outcome != 0
        self.path[over], self.least[over], self.begun[over] = 0.0, math.inf, True

    def figures(self) -> dict[str, float]:
        sums = {name: float(value) for name, value in self.sums.items()}
        flown, arrived = max(sums["decisions"], 1.0), sums["arrived"]
        figures = {
            "mean_speed": sums["speed"] / flown,
            "outside_share": sums["outside"] / flown,
            "control_effort": sums.get("change", 0.0) / max(sums.get("commands", 0.0), 1e-9),
            "clearance": sums["gap"] / flown,
        }
        if arrived:
            figures |= {"least_clearance": sums["least"] / arrived, "detour": sums["detour"] / arrived}
        return figures

    def _add(self, name: str, value: Tensor, where: Tensor) -> None:
        total = torch.where(where, value.double(), 0.0).sum()
        self.sums[name] = self.sums[name] + total if name in self.sums else total

    def _command(self, action: Action) -> Tensor:
        """The commanded velocity in the goal frame, [N, 3] m/s; headings without their climb."""
        assert isinstance(action, Tensor)
        cfg = self.env.cfg
        if cfg.action_form is ActionForm.headings:
            angle = action.reshape(-1) * (2 * math.pi / cfg.num_headings)
            return cfg.speed_limit * torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=-1)
        return cfg.speed_limit * (2.0 * action.clamp(0.0, 1.0) - 1.0)


def clearance(obs: Mapping[str, Tensor], range_m: float) -> Tensor:
    """Return the metres to the nearest surface that is observed, [N], at most the range."""
    columns = range_m - obs["lidar"].flatten(1).amax(dim=-1)
    rows = obs["dynamic_obstacle"].squeeze(1)
    unit, flat, up, _, width_class, _ = rows.split(DYNAMIC_OBSTACLE.widths, dim=-1)
    away = torch.cat([flat, up], dim=-1).norm(dim=-1) - 0.5 * widths(width_class).squeeze(-1)
    there = unit.abs().amax(dim=-1) > 0
    movers = torch.where(there, away, range_m).amin(dim=-1)
    return torch.minimum(columns, movers).clamp(0.0, range_m)
