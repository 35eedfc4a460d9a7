"""Who flies a side, and where a person's hands are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.tasks.view.controls import Control


@dataclass(eq=False)
class Seat:
    """Who flies a side: an agent, or a person (`agent` is None)."""

    name: str
    agent: BaseAgent | None = None
    decision_s: float = 1.0

    def __post_init__(self) -> None:
        self._fresh = {} if self.agent is None else self.agent.episode_state()

    def begin(self) -> None:
        """A new fight: the agent forgets, and its random stream begins again."""
        if self.agent is not None:
            self.agent.reset()
            self.agent.load_episode_state(self._fresh)


class Hands:
    """Where a person has put the controls."""

    def __init__(self, controls: Sequence[Control]) -> None:
        self.controls = {control.name: control for control in controls}
        self.values = {control.name: control.rest for control in controls}

    def put(self, values: Mapping[str, Any]) -> None:
        """Move some of them; what is not a control, or not a number, changes nothing."""
        for name, value in values.items():
            if (control := self.controls.get(name)) is not None:
                self.values[name] = control.clamp(value)

    def take(self) -> dict[str, float]:
        """What they ask for in this tick; buttons are let go."""
        asked = dict(self.values)
        for control in self.controls.values():
            if control.kind == "button":
                self.values[control.name] = control.rest
        return asked
