"""The cockpit: what a person's hands move in a duel, and what the pilot reads off the space-time graph."""

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
KEPT = 4  # worlds whose graphs stay ready
_making = threading.Lock()
_moments: dict[str, Any] = {}


def command_duel(cfg: AircombatConfig, values: Mapping[str, float]) -> Tensor | dict[str, Tensor]:
    """The action of one row that hands mean, in the form that the world takes."""
    fire = int(values["fire"] > 0.5)
    if cfg.action_form is ActionForm.discrete:
        nearest = min(range(3), key=lambda k: abs(RUDDERS[k] - values["rudder"]))
        return torch.tensor([2 * nearest + fire])
    numbers = {name: torch.tensor([float(values[name])]) for name in ("rudder", "throttle")}
    return {**numbers, "fire": torch.tensor([fire])}


def hold_duel(action: Tensor | Mapping[str, Tensor]) -> Any:
    """A command as it goes on: no second shot."""
    if isinstance(action, Tensor):
        return action - action % 2
    return {name: torch.zeros_like(part) if name == "fire" else part for name, part in action.items()}


def graph_duel(cfg: AircombatConfig, frame: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The space-time graph of a moment; from any thread, one at a time."""
    from fledge.tasks.aircombat.spacetime.graph import Moment

    with _making:
        plain = to_plain(cfg)
        key = repr([plain[name] for name in ("fighter", "missile", "load_limits", "rudder_rate", "dt_s")])
        if key not in _moments:
            while len(_moments) >= KEPT:
                _moments.pop(next(iter(_moments))).close()
            _moments[key] = Moment(cfg)
        return _moments[key].tell(frame)
