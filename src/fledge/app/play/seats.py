"""Seats of a match, and the controls of a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.tasks.view.controls import Control


@dataclass(eq=False)
class Seat:
    """The pilot of a side: an agent, or a person (`agent` is None)."""

    name: str
    agent: BaseAgent | None = None
    decision_s: float = 1.0

    def __post_init__(self) -> None:
        self._fresh = {} if self.agent is None else self.agent.episode_state()

    def begin(self) -> None:
        """Reset the agent's memory and random stream for a new fight."""
        if self.agent is not None:
            self.agent.reset()
            self.agent.load_episode_state(self._fresh)


class Hands:
    """The positions of a person's controls."""

    def __init__(self, controls: Sequence[Control]) -> None:
        self.controls = {control.name: control for control in controls}
        self.values = {control.name: control.rest for control in controls}

    def put(self, values: Mapping[str, Any]) -> None:
        """Set controls; unknown names and values that are not numbers are ignored."""
        for name, value in values.items():
            if (control := self.controls.get(name)) is not None:
                self.values[name] = control.clamp(value)

    def take(self) -> dict[str, float]:
        """Return the positions for this tick, and release buttons."""
        asked = dict(self.values)
        for control in self.controls.values():
            if control.kind == "button":
                self.values[control.name] = control.rest
        return asked
