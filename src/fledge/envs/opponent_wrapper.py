"""OpponentWrapper: makes a two-sided env one-sided. The caller controls one side of each episode, opponents the other.

Row i is episode i of an env whose rows share episodes in pairs (`group` is 2). The caller has the first side in even rows
and the second in odd rows (numbered over all ranks), so that a policy learns both sides. With several opponents,
each new episode draws one by weight, as a function of (seed, global index of the row, number of the episode), so the draw
does not depend on threads and ranks. Opponents can be added and weights changed at any time; running episodes keep their
opponents. The wrapper keeps the hidden states of recurrent opponents, one for each row, so envs can share an opponent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.random import Purpose, uniform
from fledge.envs.base import Action, TensorEnv, check_begun, make_action_buffer
from fledge.envs.wrapper import EnvWrapper


class Opponent(Protocol):
    """The methods of an agent that OpponentWrapper calls."""

    def act(self, obs: Mapping[str, Tensor], deterministic: bool = True) -> Any: ...
    def get_name(self) -> str: ...
    def reset(self, env_mask: Tensor | None = None) -> None: ...
    def episode_state(self) -> dict[str, Any]: ...
    def load_episode_state(self, state: Mapping[str, Any]) -> None: ...


def hidden_size_of(opponent: Any) -> int:
    """Return the width of a recurrent opponent's hidden state (`BaseAgent.hidden_size`); 0 if it has none."""
    return getattr(opponent, "hidden_size", 0)


class OpponentWrapper(EnvWrapper):
    """One-sided view of a two-sided env, in which opponents control the other side.

    Args:
        both: The two-sided env; closed by `close()`.
        weights: Relative frequency of each opponent; equal by default.
        env_offset: Global index of the first row.
    """

    def __init__(
        self,
        both: TensorEnv,
        opponents: Sequence[Opponent],
        weights: Sequence[float] | None = None,
        env_offset: int = 0,
    ) -> None:
        if both.group != 2:
            raise InputError(
                f"OpponentWrapper needs an env with 2 rows per episode, but {type(both).__name__} has {both.group}: "
                "pass an env with two sides."
            )
        super().__init__(both, both.num_envs // 2)
        self.both, self.env_offset, self.group = both, env_offset, 1
        rows = torch.arange(self.num_envs, device=self.device)
        self.mine = 2 * rows + (rows + env_offset) % 2
        self.theirs = 4 * rows + 1 - self.mine
        self.opponent = torch.zeros(self.num_envs, dtype=torch.int64)  # index of each row's opponent
        self.episode = torch.full((self.num_envs,), -1, dtype=torch.int64)
        self.opponents: list[Opponent] = []
        self.hidden: dict[int, Tensor] = {}  # states of the recurrent opponents by number, [num_envs, H]
        self.results = torch.zeros((0, max(both.outcomes) + 1), dtype=torch.int64)
        """Number of episodes that ended against each opponent, by the caller's outcome; see `take_results`."""
        self.set_opponents(opponents, weights)
        self._out = both.make_buffers()
        self._actions = make_action_buffer(both.action_spec, (both.num_envs,), self.device)
        self._begun = False

    @property
    def unwrapped(self) -> TensorEnv:
        return self

    def set_opponents(self, opponents: Sequence[Opponent], weights: Sequence[float] | None = None) -> None:
        """Set the opponents of the next episodes, at least as many as before. An opponent of weight 0 is not drawn.

        Results of new opponents begin at 0.
        """
        weights = [1.0] * len(opponents) if weights is None else list(weights)
        if len(opponents) < max(1, len(self.opponents)) or len(weights) != len(opponents):
            raise InputError(
                f"set_opponents got {len(opponents)} opponents and {len(weights)} weights: pass one weight per opponent, "
                f"and at least {max(1, len(self.opponents))} opponents."
            )
        if not all(np.isfinite(w) and w >= 0 for w in weights) or sum(weights) <= 0:
            raise InputError(f"The opponents' weights are {weights}, but must be 0 or more, with at least one above 0.")
        self.opponents = list(opponents)
        self.hidden = {number: state for number, state in self.hidden.items() if hidden_size_of(opponents[number])}
        self._edges = np.cumsum(np.asarray(weights, np.float64) / sum(weights))
        self._edges[-1] = np.inf  # 1 up to rounding
        new = torch.zeros((len(opponents) - len(self.results), self.results.shape[1]), dtype=torch.int64)
        self.results = torch.cat([self.results, new])

    def take_results(self) -> Tensor:
        """Return how many episodes ended since the last call, by opponent and outcome, [opponents, outcomes]."""
        taken, self.results = self.results, torch.zeros_like(self.results)
        return taken

    def in_the_air(self) -> Tensor:
        """Return the number of rows that each opponent controls now, [opponents]."""
        return torch.bincount(self.opponent, minlength=len(self.opponents))

    # ---- a step ------------------------------------------------------------------------------------------------

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        env_mask = self.check_mask(env_mask, self._begun)
        self.both.reset(env_mask.repeat_interleave(2), out=self._out)
        self._begin(env_mask)
        self._begun = True
        return self._hand_out(out)

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        check_begun(self._begun)
        self.check_action(action)
        self._put(action, self.mine)
        met = [0] if len(self.opponents) == 1 else self.opponent.unique().tolist()
        for number in met:
            chosen = slice(None) if len(met) == 1 else (self.opponent == number).to(self.device)
            rows = self.theirs[chosen]
            acted = self._ask(number, {name: value[rows] for name, value in self._out["obs"].items()}, chosen)
            self.check_action(acted, f"Opponent {self.opponents[number].get_name()}: the action", len(rows))
            self._put(acted, rows)
        self.both.step(self._actions, dt, out=self._out)
        result = self._hand_out(out)
        ended = self._out["terminated"][self.mine] | self._out["truncated"][self.mine]
        if ended.device.type != "cpu" or ended.any():
            self._count(ended.cpu(), self._out["outcome"][self.mine].cpu())
            self._begin(ended)
        return result

    def _ask(self, number: int, seen: Mapping[str, Tensor], chosen: Any) -> Any:
        """Return an opponent's actions for the observations `seen` of the rows `chosen` (an index of [num_envs])."""
        opponent: Any = self.opponents[number]
        if not (size := hidden_size_of(opponent)):
            return opponent.act(seen, True)
        if number not in self.hidden:
            self.hidden[number] = torch.zeros(self.num_envs, size, device=self.device)
        acted, self.hidden[number][chosen] = opponent.act_with(seen, self.hidden[number][chosen], True)
        return acted

    def _put(self, action: Any, rows: Tensor) -> None:
        if isinstance(action, Tensor):
            self._actions[rows] = action.to(self._actions.dtype)
            return
        for name, part in action.items():
            self._actions[name][rows] = part.to(self._actions[name].dtype)

    def _count(self, ended: Tensor, outcome: Tensor) -> None:
        places = self.opponent[ended] * self.results.shape[1] + outcome[ended].long()
        self.results += torch.bincount(places, minlength=self.results.numel()).view_as(self.results)

    def _begin(self, mask: Tensor) -> None:
        """Draw opponents for the episodes that begin where the mask is true."""
        rows = mask.cpu().nonzero().flatten()
        self.episode[rows] += 1
        for hidden in self.hidden.values():
            hidden[mask.to(self.device)] = 0.0
        if len(self.opponents) == 1:
            self.opponents[0].reset(mask)
            return
        purpose = np.full(len(rows), Purpose.OPPONENT)
        counter = np.stack([rows.numpy() + self.env_offset, self.episode[rows].numpy(), purpose, 0 * purpose], 1)
        self.opponent[rows] = torch.from_numpy(np.searchsorted(self._edges, uniform(counter, self.seed)[:, 0], "right"))

    def _hand_out(self, out: TensorDict | None) -> TensorDict:
        """Copy the rows of the caller's sides from the inner env's buffers to `out` (or new buffers), and return it."""
        out = self.make_buffers() if out is None else out
        for name, place in out.items():
            nested = isinstance(place, TensorDict)
            for key, part in place.items() if nested else [(name, place)]:
                source = self._out[name][key] if nested else self._out[name]
                if part.shape != (self.num_envs, *source.shape[1:]) or part.dtype != source.dtype:
                    got = f"{part.dtype} {tuple(part.shape)}"
                    raise InputError(
                        f"out[{name}] is {got}, which does not match the env: make out with env.make_buffers()."
                    )
                part.copy_(source[self.mine])
        return out

    # ---- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        state = {
            "both": self.both.state_dict(),
            "seen": {name: value.clone() for name, value in self._out["obs"].items()},
            "opponent": self.opponent.clone(),
            "episode": self.episode.clone(),
            "results": self.results.clone(),
            "memories": [opponent.episode_state() for opponent in self.opponents],
            "begun": self._begun,
        }
        return state | ({"hidden": {str(k): v.clone() for k, v in self.hidden.items()}} if self.hidden else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, to continue exactly from there.

        Call `set_opponents` before, with the opponents that were set at the save, in the same order. More may follow them:
        an opponent may have joined the league before the save, although the env did not have it yet.
        """
        self.check_state(state, [key for key in self.state_dict() if key != "hidden"])
        known = len(state["memories"])
        if known > len(self.opponents):
            raise InputError(
                f"The state was saved with {known} opponents, but {len(self.opponents)} are set: call set_opponents with "
                "the opponents of the state first."
            )
        self.both.load_state_dict(state["both"])
        for name, value in self._out["obs"].items():
            value.copy_(state["seen"][name])
        for name in ("opponent", "episode"):
            getattr(self, name).copy_(state[name])
        self.results.zero_()[:known].copy_(state["results"])
        for opponent, memory in zip(self.opponents, state["memories"], strict=False):
            opponent.load_episode_state(memory)
        self.hidden = {int(k): v.to(self.device).clone() for k, v in state.get("hidden", {}).items()}
        self._begun = bool(state["begun"])
