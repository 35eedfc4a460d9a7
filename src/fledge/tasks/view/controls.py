"""Manual controls (`TaskView.controls`), from which pages make keys, sliders and buttons.

stick     between `low` and `high`, back to `rest` when let go       rudder
lever     the same, but stays where it is put                        throttle
button    0, or 1 for one moment when it is pressed                  fire
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fledge.core.specs import ActionSpec, TensorSpec

Kind = Literal["stick", "lever", "button"]


@dataclass(frozen=True)
class Control:
    """One control. Keys are named as browsers name them (`KeyboardEvent.code`)."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 1.0
    rest: float = 0.0
    label: str = ""
    less: str = ""
    """Label of the direction towards `low`."""
    more: str = ""
    keys_less: Sequence[str] = ()
    keys_more: Sequence[str] = ()
    """Keys that move the control towards `high`, or press the button."""

    def told(self) -> dict[str, Any]:
        """Return the control as a dict of plain values."""
        return asdict(self) | {"label": self.label or self.name}

    def clamp(self, value: Any) -> float:
        """Return a value within the limits; `rest` if it is not a number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return self.rest
        return float(min(max(value, self.low), self.high))  # a whole number may be too large for a float


def controls_of(spec: ActionSpec) -> list[Control]:
    """Return a control for each part of an action; an empty list if a part is a vector, unbounded, or has over two choices."""
    parts = {"action": spec} if isinstance(spec, TensorSpec) else dict(spec)
    found = []
    for name, part in parts.items():
        if part.shape != () or part.num_values not in (None, 2) or not part.bounded:
            return []
        if part.num_values == 2:
            found.append(Control(name, "button"))
        else:
            low, high = float(part.low), float(part.high)
            rest = 0.0 if low <= 0.0 <= high else low
            found.append(Control(name, "stick" if low < 0.0 else "lever", low, high, rest))
    return found


def command_of(spec: ActionSpec, values: Mapping[str, float]) -> Tensor | dict[str, Tensor]:
    """Return the action of a single env, with batch shape [1], for these values of the controls."""
    parts = {"action": spec} if isinstance(spec, TensorSpec) else dict(spec)
    made = {name: torch.tensor([values[name]], dtype=part.dtype) for name, part in parts.items()}
    return made["action"] if isinstance(spec, TensorSpec) else made


def without_buttons(controls: Sequence[Control], action: Tensor | Mapping[str, Tensor]) -> Any:
    """Return the action with the values of all buttons set to 0."""
    buttons = {control.name for control in controls if control.kind == "button"}
    if isinstance(action, Tensor):
        return torch.zeros_like(action) if buttons else action
    return {name: torch.zeros_like(part) if name in buttons else part for name, part in action.items()}
