"""A duel from one seat: the caller flies one side of each, an opponent the other.

Row i is duel i. The caller has the first side of even duels and the second of odd ones (numbered over all ranks), so what he
learns does not depend on the side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict

from fledge.agents.base import BaseAgent
from fledge.core.errors import InputError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.base import Action, TensorEnv, make_action_buffer
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.env import AircombatEnv


class VersusEnv(TensorEnv):
    """Duels against an opponent.

    Args:
        cfg: The task; `num_envs` duels.
        opponent: Flies the other side, without exploration.
        device, seed, num_threads, env_offset, total_envs: As `WarpEnv` says, in duels.
    """

    outcomes = AircombatEnv.outcomes

    def __init__(
        self,
        cfg: AircombatConfig,
        opponent: BaseAgent,
        device: str = "cpu",
        seed: int = 0,
        num_threads: int | None = None,
        env_offset: int = 0,
        total_envs: int | None = None,
    ) -> None:
        super().__init__(cfg.num_envs, device, seed)
        self.cfg, self.opponent = cfg, opponent.to(self.device).eval()
        rows = dataclasses.replace(cfg, num_envs=2 * cfg.num_envs, opponent=cfg.opponent or opponent.get_name())
        total = 2 * (total_envs or cfg.num_envs)
        self.duel = AircombatEnv(rows, device, seed, num_threads, 2 * env_offset, total)
        self.decision_s = self.duel.decision_s
        duels = torch.arange(cfg.num_envs, device=self.device)
        self.mine = 2 * duels + (duels + env_offset) % 2
        self.theirs = 4 * duels + 1 - self.mine
        self._out = self.duel.make_buffers()
        self._actions = make_action_buffer(self.duel.action_spec, (self.duel.num_envs,), self.device)

    @property
    def unwrapped(self) -> TensorEnv:
        return self.duel

    @property
    def observation_spec(self) -> dict[str, TensorSpec]:
        return self.duel.observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self.duel.action_spec

    def reset(self, env_mask: torch.Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        env_mask = self.check_mask(env_mask, self.duel._has_reset)
        self.duel.reset(env_mask.repeat_interleave(2), out=self._out)
        self.opponent.reset(env_mask)
        return self._hand_out(out)

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        self.check_action(action)
        theirs = self.opponent.act({name: value[self.theirs] for name, value in self._out["obs"].items()}, True)
        if isinstance(action, torch.Tensor):
            assert isinstance(theirs, torch.Tensor)
            self._actions[self.mine], self._actions[self.theirs] = action, theirs
        else:
            assert not isinstance(theirs, torch.Tensor)
            for name, part in action.items():
                self._actions[name][self.mine] = part.to(self._actions[name].dtype)
                self._actions[name][self.theirs] = theirs[name].to(self._actions[name].dtype)
        self.duel.step(self._actions, dt, out=self._out)
        result = self._hand_out(out)
        self.opponent.reset(result["terminated"] | result["truncated"])
        return result

    def _hand_out(self, out: TensorDict | None) -> TensorDict:
        """The caller's rows of the duel's buffers, in buffers of his."""
        out = self.make_buffers() if out is None else out
        for name, place in out.items():
            for key, part in place.items() if isinstance(place, TensorDict) else [(None, place)]:
                source = self._out[name] if key is None else self._out[name][key]
                if part.shape != (self.num_envs, *source.shape[1:]) or part.dtype != source.dtype:
                    raise InputError(
                        f"out[{name}] is {part.dtype} {tuple(part.shape)}, but must be made by env.make_buffers()."
                    )
                part.copy_(source[self.mine])
        return out

    # ---- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        seen = {name: value.clone() for name, value in self._out["obs"].items()}
        return {"duel": self.duel.state_dict(), "opponent": self.opponent.memory(), "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if missing := [name for name in ("duel", "opponent", "seen") if name not in state]:
            raise InputError(f"This is not a state of a VersusEnv: it has no {', '.join(missing)}.")
        self.duel.load_state_dict(state["duel"])
        self.opponent.recall(state["opponent"])
        for name, value in self._out["obs"].items():
            value.copy_(state["seen"][name])

    def close(self) -> None:
        self.duel.close()
