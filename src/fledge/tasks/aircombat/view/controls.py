"""Manual control of a duel, and the space-time graph that is shown beside it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.core.overrides import to_plain
from fledge.tasks.aircombat.config import ActionForm, AircombatConfig
from fledge.tasks.aircombat.env import RUDDERS
from fledge.tasks.view.controls import Control

CONTROLS = (
    Control(
        "rudder", "stick", -1.0, 1.0, 0.0, "rudder", "right", "left", ("ArrowRight", "KeyD"), ("ArrowLeft", "KeyA")
    ),
    Control(
        "throttle", "lever", 0.0, 1.0, 1.0, "throttle", "slower", "faster", ("ArrowDown", "KeyS"), ("ArrowUp", "KeyW")
    ),
    Control("fire", "button", label="fire", more="fire", keys_more=("Space",)),
)
MAX_SOLVERS = 4  # kept ready, one for each physics
_lock = threading.Lock()
_solvers: dict[str, Any] = {}


def command_duel(cfg: AircombatConfig, values: Mapping[str, float]) -> Tensor | dict[str, Tensor]:
    """Return the action of one row for values of the controls, in the env's action form."""
    fire = int(values["fire"] > 0.5)
    if cfg.action_form is ActionForm.discrete:
        nearest = min(range(3), key=lambda k: abs(RUDDERS[k] - values["rudder"]))
        return torch.tensor([2 * nearest + fire])
    numbers = {name: torch.tensor([float(values[name])]) for name in ("rudder", "throttle")}
    return {**numbers, "fire": torch.tensor([fire])}


def hold_duel(action: Tensor | Mapping[str, Tensor]) -> Any:
    """Return an action to repeat: the same controls without another shot."""
    if isinstance(action, Tensor):
        return action - action % 2
    return {name: torch.zeros_like(part) if name == "fire" else part for name, part in action.items()}


def graph_duel(cfg: AircombatConfig, frame: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the space-time graph of a frame; safe from any thread, one at a time."""
    from fledge.tasks.aircombat.spacetime.graph import GraphSolver

    with _lock:
        plain = to_plain(cfg)
        key = repr([plain[name] for name in ("fighter", "missile", "load_limits", "rudder_rate", "dt_s")])
        if key not in _solvers:
            while len(_solvers) >= MAX_SOLVERS:
                _solvers.pop(next(iter(_solvers))).close()
            _solvers[key] = GraphSolver(cfg)
        return _solvers[key].solve(frame)
