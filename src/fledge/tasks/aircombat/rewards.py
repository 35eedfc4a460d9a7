"""Rewards of the duel, as terms with weights: `win_loss+0.5*shaped-0.02*shots`.

A term computes the rewards of one step of all rows:

    compute(obs_before, obs_after, action, done, info) -> [rows]

`obs_after` is the observation after the step; where a fight ended, its last observation, not the first of the next. `info` has
"outcome" [rows] (`structs.Outcome`), "terminated" [rows] and "shots" [rows], the missiles fired in this step. A win is worth
1, so a term's weight says how many wins a value of 1 is worth. To add a term, add a subclass of `BaseReward` and its name in
TERMS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.core.code import find_object, is_reference
from fledge.core.errors import ConfigError
from fledge.tasks.aircombat.observations import Spacetime, State
from fledge.tasks.aircombat.physics.structs import Outcome

Obs = Mapping[str, Tensor]
PART = re.compile(r"\s*([+-]?)\s*(?:(\d*\.?\d+(?:e-?\d+)?)\s*\*\s*)?([\w./]+(?::\w+)?)\s*")


class BaseReward:
    """Base class of the duel's rewards. Implement `compute` in a subclass, and train with `env.reward=file.py:Class`.

    Set `looks_back` to False if `compute` does not read `obs_before`. Keep tensors that a reward needs from earlier steps of a
    fight in `state`.

    Args:
        device: Device of the observations and of `state`.

    Example:
        >>> class Thrifty(BaseReward):
        ...     looks_back = False
        ...     def compute(self, obs_before, obs_after, action, done, info):
        ...         return -0.01 * info["shots"].float()
    """

    task = "aircombat"
    """Name of the task whose env computes this reward within its step."""

    looks_back: bool = True
    """Whether `compute` reads `obs_before`; if false, `obs_before` may be empty."""

    state: Mapping[str, Tensor] = {}
    """Memory of the fights, [rows, ...] each; saved with the env. Other attributes are not saved."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)

    def compute(self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor, info: Mapping[str, Any]) -> Tensor:
        """Return the reward of each row for one decision, [rows] float32.

        Args:
            obs_before: Observations that the action was chosen on, [rows, ...] each; may be empty if `looks_back` is False.
            obs_after: Observations that the decision led to, also where the fight ended.
            action: The action of every row, as the env's action_spec says.
            done: True where the fight ended, [rows] bool.
            info: `outcome` [rows] uint8 (0: the fight goes on; names in `AircombatEnv.outcomes`), `terminated` [rows]
                bool, and `shots` [rows] int32, the missiles that a row fired in this decision.
        """
        raise NotImplementedError

    def reset(self, env_mask: Tensor | None = None) -> None:
        """Reset `state` for fights that begin: in all rows, or where `env_mask` [rows] is true."""

    def to(self, device: str | torch.device) -> BaseReward:
        """Move the reward to a device, and return it. Override this method if you keep tensors outside `state`."""
        self.device = torch.device(device)
        return self

    def get_name(self) -> str:
        """Return the reward's name for error messages."""
        return type(self).__name__


class ZeroReward(BaseReward):
    """Always 0."""

    looks_back = False

    def compute(self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor, info: Mapping[str, Any]) -> Tensor:
        return torch.zeros(done.shape, device=done.device)


class WinLossReward(BaseReward):
    """1 for a win, -1 for a loss, `draw` when both die or neither side has a missile left."""

    looks_back = False

    def __init__(self, device: str | torch.device = "cpu", draw: float = 0.0) -> None:
        super().__init__(device)
        self.draw = draw

    def compute(self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor, info: Mapping[str, Any]) -> Tensor:
        outcome = info["outcome"]
        won = (outcome == Outcome.WIN).float() - (outcome == Outcome.LOSS).float()
        return won + self.draw * ((outcome == Outcome.DRAW) | (outcome == Outcome.SPENT)).float()


class ShapedReward(BaseReward):
    """Potential-based shaping, gamma Phi(after) - Phi(before): it cannot change which policy is best (Ng 1999).

    Phi, in [-1, 1], grows with the threat to the enemy and falls with the threat from the enemy. It is computed from
    where the noses point, energy, and missile ranges, and is 0 once a fight has ended.
    """

    def __init__(self, device: str | torch.device = "cpu", gamma: float = 0.99) -> None:
        super().__init__(device)
        self.gamma = gamma

    def potential(self, obs: Obs) -> Tensor:
        """Return the potential Phi of each row's observations, [rows]."""
        state = obs["state"]
        facing = 0.5 * (state[:, State.BEARING_COS] - state[:, State.ASPECT_COS])  # own nose on the enemy, its nose off
        energy = 0.5 * (state[:, State.ENERGY] - state[:, State.ENEMY_ENERGY])
        reach = torch.zeros_like(facing)
        if "spacetime" in obs:
            graph = obs["spacetime"]
            mine, theirs = graph[:, Spacetime.OVER_R_TR], graph[:, Spacetime.ENEMY_OVER_R_TR]
            reach = 0.5 * ((2.0 - mine).clamp(-1, 1) - (2.0 - theirs).clamp(-1, 1))
        return 0.25 * facing + 0.25 * energy.clamp(-1, 1) + 0.5 * reach

    def compute(self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor, info: Mapping[str, Any]) -> Tensor:
        after = self.potential(obs_after) * (~info["terminated"]).float()
        return self.gamma * after - self.potential(obs_before)


class ShotsReward(BaseReward):
    """1 for every missile fired; with a negative weight, a cost."""

    looks_back = False

    def compute(self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor, info: Mapping[str, Any]) -> Tensor:
        return info["shots"].float()


TERMS: dict[str, type[BaseReward]] = {
    "zero": ZeroReward,
    "win_loss": WinLossReward,
    "shaped": ShapedReward,
    "shots": ShotsReward,
}


class SumReward(BaseReward):
    """A weighted sum of terms."""

    def __init__(self, terms: list[tuple[float, BaseReward]], device: str | torch.device = "cpu") -> None:
        super().__init__(device)
        self.terms = terms
        self.looks_back = any(term.looks_back for _, term in terms)

    @property
    def state(self) -> Mapping[str, Tensor]:
        return {f"{k}.{name}": value for k, (_, term) in enumerate(self.terms) for name, value in term.state.items()}

    @state.setter
    def state(self, saved: Mapping[str, Tensor]) -> None:
        for k, (_, term) in enumerate(self.terms):
            parts = {name.removeprefix(f"{k}."): v for name, v in saved.items() if name.startswith(f"{k}.")}
            if parts:
                term.state = parts

    def compute(self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor, info: Mapping[str, Any]) -> Tensor:
        total = torch.zeros(done.shape, device=done.device)
        for weight, term in self.terms:
            total += weight * term.compute(obs_before, obs_after, action, done, info)
        return total

    def reset(self, env_mask: Tensor | None = None) -> None:
        for _, term in self.terms:
            term.reset(env_mask)

    def to(self, device: str | torch.device) -> SumReward:
        self.terms = [(weight, term.to(device)) for weight, term in self.terms]
        super().to(device)
        return self


def is_built_in(reward: BaseReward) -> bool:
    """Return whether a reward consists of `TERMS` only, which keep no state and run as they are in a CUDA graph."""
    if isinstance(reward, SumReward):
        return all(is_built_in(term) for _, term in reward.terms)
    return type(reward) in TERMS.values()


def create_reward(name: str = "win_loss", device: str | torch.device = "cpu", **options: Any) -> BaseReward:
    """Create a reward by its name, `module:Class` or `file.py:Class`, or as a sum such as `win_loss+0.5*shaped`.

    Args:
        options: Arguments of the term's class, if `name` is a single term.
    """
    parts = _parts_of(name)
    if len(parts) > 1 and options:
        raise ConfigError(
            f"{', '.join(options)} can be set only for a reward of one term, but {name!r} has {len(parts)} terms: pass no "
            "options with a sum."
        )
    terms = [
        (float(weight or 1.0) * (-1.0 if sign == "-" else 1.0), _make_term(term, device, options))
        for sign, weight, term in parts
    ]
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1.0 else SumReward(terms, device)


def _parts_of(name: str) -> list[tuple[str, str, str]]:
    """Return sign, weight and name of each term in a sum such as `win_loss+0.5*shaped`."""
    if is_reference(name) and Path(name.rpartition(":")[0]).is_file():  # a path may contain + and -
        return [("", "", name)]
    parts: list[tuple[str, str, str]] = []
    at = 0
    while at < len(name):
        found = PART.match(name, at)
        if not found or (parts and not found[1]) or not math.isfinite(float(found[2] or 1.0)):
            raise ConfigError(
                f"env.reward={name!r} is not a sum of terms: write terms with weights, as in win_loss+0.5*shaped."
            )
        parts.append((found[1], found[2], found[3]))
        at = found.end()
    if not parts:
        raise ConfigError(f"env.reward is empty. Choose one of {', '.join(TERMS)}.")
    return parts


def _make_term(name: str, device: str | torch.device, options: Mapping[str, Any]) -> BaseReward:
    kind = TERMS.get(name) if ":" not in name else find_object(name)
    if not (isinstance(kind, type) and issubclass(kind, BaseReward)):
        raise ConfigError(
            f"{name!r} is not a known reward. Choose one of {', '.join(TERMS)}, or module:Class or file.py:Class of a "
            "BaseReward."
        )
    try:
        return kind(device=device, **options)
    except TypeError as error:
        raise ConfigError(f"The reward {name} does not accept {', '.join(options) or 'device'}: {error}.") from error
