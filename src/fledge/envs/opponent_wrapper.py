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
import warp as wp
from tensordict import TensorDict
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.random import split_seed
from fledge.core.transfer import Fetch, to_device
from fledge.envs.base import Action, TensorEnv, check_begun, make_action_buffer
from fledge.envs.launch import Call, Launcher, Program
from fledge.envs.opponent_draws import begin_episodes
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
        self.opponent = torch.zeros_like(rows)  # index of each row's opponent
        self.episode = torch.full_like(rows, -1)
        self.opponents: list[Opponent] = []
        self.hidden: dict[int, Tensor] = {}  # states of the recurrent opponents by number, [num_envs, H]
        self.results = rows.new_zeros((0, max(both.outcomes) + 1))
        """Number of episodes that ended against each opponent, by the caller's outcome; see `take_results`."""
        self._out = both.make_buffers()
        self._ended = torch.zeros_like(rows, dtype=torch.bool)
        self._launcher = Launcher(str(self.device), 1)
        self._flying, self._drawn, self._rows = set[int](), set[int](), Fetch([rows[:0]])  # see `_note_flying`
        self.set_opponents(opponents, weights)
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
        edges = np.cumsum(np.asarray(weights, np.float64) / sum(weights))
        edges[-1] = np.inf  # 1 up to rounding
        new = self.results.new_zeros((len(opponents) - len(self.results), self.results.shape[1]))
        self.results = torch.cat([self.results, new])
        self._note_flying({number for number, weight in enumerate(weights) if weight > 0})
        self._edges = to_device({"edges": torch.from_numpy(edges)}, self.device)["edges"]
        outcome = self._out["outcome"]
        self._arrays = [outcome, self._edges, self.episode, self.opponent, self.results]  # which the launches read
        outcome, *arrays = (wp.from_torch(tensor) for tensor in self._arrays)
        args = [wp.from_torch(self._ended), outcome, self.env_offset, wp.vec2ui(*split_seed(self.seed)), *arrays]
        self._draw, self._count_and_draw = (
            self._launcher.record([Call(begin_episodes, [counts, *args])], self.num_envs) for counts in (0, 1)
        )

    def _note_flying(self, drawn: set[int]) -> None:
        """Set `_flying`, the opponents that may control a row until the next call, if those `drawn` from now on have weights.

        The host knows the rows' opponents late, so these are those of the last call, and all that were drawn since.
        """
        self._flying = {number for number, rows in enumerate(self._rows.get()[0]) if rows} | self._drawn | drawn
        self._drawn, self._rows = drawn, Fetch([self.in_the_air()])

    def take_results(self) -> Tensor:
        """Return how many episodes ended since the last call, by opponent and outcome, [opponents, outcomes]."""
        taken = self.results.clone()
        self.results.zero_()
        return taken

    def in_the_air(self) -> Tensor:
        """Return the number of rows that each opponent controls now, [opponents]."""
        return torch.zeros_like(self.results[:, 0]).scatter_add_(0, self.opponent, torch.ones_like(self.opponent))

    # ---- a step ------------------------------------------------------------------------------------------------

    def reset(self, env_mask: Tensor | None = None, out: TensorDict | None = None) -> TensorDict:
        env_mask = self.check_mask(env_mask, self._begun)
        self.both.reset(env_mask.repeat_interleave(2), out=self._out)
        self._begin(self._ended.copy_(env_mask), self._draw)
        self._begun = True
        return self._hand_out(out)

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        check_begun(self._begun)
        self.check_action(action)
        self._put(action, self.mine)
        if len(self.opponents) == 1 or self._ended.is_cuda:
            self._ask_all()
        else:
            for number in self.opponent.unique().tolist():
                self._ask(number, self.opponent == number)
        self.both.step(self._actions, dt, out=self._out)
        result = self._hand_out(out)
        torch.logical_or(self._out["terminated"][::2], self._out["truncated"][::2], out=self._ended)
        if self._ended.is_cuda or self._ended.any():
            self._begin(self._ended, self._count_and_draw)
        return result

    def _ask(self, number: int, chosen: Any) -> None:
        """Write an opponent's actions for the rows `chosen`, an index of [num_envs]."""
        rows = self.theirs[chosen]
        seen = {name: value[rows] for name, value in self._out["obs"].items()}
        acted, hidden = self._act(number, seen, chosen)
        self._put(acted, rows)
        if hidden is not None:
            self.hidden[number][chosen] = hidden

    def _ask_all(self) -> None:
        """Write the actions of all opponents that may be flying, each for all rows, and keep those of its own rows.

        To choose the rows first, the host would have to wait for a GPU.
        """
        seen = {name: value[self.theirs] for name, value in self._out["obs"].items()}
        for number in sorted(self._flying):
            acted, hidden = self._act(number, seen, slice(None))
            mask = self.opponent == number if len(self._flying) > 1 else None
            self._put(acted, self.theirs, mask)
            if hidden is not None:
                self.hidden[number] = _chosen(hidden, self.hidden[number], mask)

    def _act(self, number: int, seen: Mapping[str, Tensor], chosen: Any) -> tuple[Any, Tensor | None]:
        """Return an opponent's actions for the observations `seen` of the rows `chosen`, and its next states, if any."""
        opponent: Any = self.opponents[number]
        hidden = None
        if not (size := hidden_size_of(opponent)):
            acted = opponent.act(seen, True)
        else:
            if number not in self.hidden:
                self.hidden[number] = torch.zeros(self.num_envs, size, device=self.device)
            acted, hidden = opponent.act_with(seen, self.hidden[number][chosen], True)
        rows = len(next(iter(seen.values())))
        self.check_action(acted, f"Opponent {opponent.get_name()}: the action", rows)
        return acted, hidden

    def _put(self, action: Any, rows: Tensor, mask: Tensor | None = None) -> None:
        """Write actions to these rows of both sides' actions; with a mask, only where it is true."""
        parts = (
            [(self._actions, action)]
            if isinstance(action, Tensor)
            else [(self._actions[name], part) for name, part in action.items()]
        )
        for place, part in parts:
            place[rows] = _chosen(part.to(place.dtype), place[rows] if mask is not None else part, mask)

    def _begin(self, mask: Tensor, program: Program) -> None:
        """Begin the episodes where the mask, which is `_ended`, is true, with a program that draws their opponents."""
        self._launcher.run(program)
        for number, hidden in self.hidden.items():
            self.hidden[number] = hidden.masked_fill(mask[:, None], 0.0)
        if len(self.opponents) == 1:
            self.opponents[0].reset(mask)

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
                torch.index_select(source, 0, self.mine, out=part)
        return out

    def close(self) -> None:
        self._launcher.close()
        super().close()

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
        self._rows = Fetch([self.in_the_air()])
        self._note_flying(self._drawn)
        for opponent, memory in zip(self.opponents, state["memories"], strict=False):
            opponent.load_episode_state(memory)
        self.hidden = {int(k): v.to(self.device).clone() for k, v in state.get("hidden", {}).items()}
        self._begun = bool(state["begun"])


def _chosen(value: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
    """Return `value` [N, ...] where the mask [N] is true, and `other` elsewhere; `value` if there is no mask."""
    return value if mask is None else torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, other)
