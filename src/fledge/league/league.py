"""The league: a learner's opponents. They are a ladder of scripted policies (or other runs) and past selves (copies).

The ladder is a curriculum. Its present stage is beaten when, over the last `window` fights against that opponent, at least
half of all were decided, and at least `promote_at` of the decided fights were won. Then the next opponent joins, and with
`past_selves` a copy of the learner. After the last stage, a copy joins whenever the learner beats the newest copy. Nothing
depends on a number of steps.

Opponents are drawn with weight (1 - score)^priority plus a small constant. A league that is saved and loaded continues
exactly. Every rank holds the same league and updates it with the results of all ranks.

The state holds the weights of past selves that are still opponents. Each past self is also saved once to a file of its own
(`take_new_selves`), so that checkpoints do not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError, InputError
from fledge.core.settings import setting
from fledge.core.transfer import to_host
from fledge.league.elo import Ratings

MIN_WEIGHT = 0.05  # weight of an opponent that never wins
Weights = Mapping[str, Tensor]


@dataclass
class LeagueConfig:
    ladder: list[str] = setting([], resume="restart", code=True)
    """Opponents to beat in turn: scripted policies, policy files, runs, file.py:Class; empty: only env.opponent."""
    advance: bool = setting(True, resume="restart")
    """Opponents join one after the other, each when the one before is beaten; false: all from the start."""
    promote_at: float = setting(0.8, above=0, at_most=1)
    """Share of the decided fights that the learner must win before the next opponent is added."""
    window: int = setting(500, at_least=1)
    """Number of recent fights over which the score against an opponent is averaged."""
    past_selves: int = setting(0, at_least=0, at_most=64)
    """Number of copies of the learner, the newest ones, that are kept as opponents."""
    self_share: float = setting(0.5, at_least=0, at_most=1)
    """Share of the league's fights that are against past selves, once there are any."""
    self_beaten_at: float = setting(0.6, above=0, at_most=1)
    """Share of decided fights that must be won against the newest past self before another past self joins."""
    priority: float = setting(1.0, at_least=0)
    """Exponent of (1 - score) in an opponent's weight: larger chooses hard opponents more often; 0: all equally."""
    self_play: float = setting(0.0, at_least=0, below=1, resume="restart")
    """Share of episodes against the learner's own weights at the rollout's start; the others are against the league."""


class Retired(BaseAgent):
    """Placeholder for a past self that is no longer an opponent, so that other opponents keep their numbers."""


class League:
    """Opponents of a learner, their scores and ratings.

    Args:
        find_agent: Returns the agent that a name in league.ladder stands for, or None if there is no such agent.
        make_self: Returns an agent with the given weights of the learner: a past self.
    """

    def __init__(
        self,
        cfg: LeagueConfig,
        find_agent: Callable[[str], BaseAgent | None],
        make_self: Callable[[Weights], BaseAgent],
    ) -> None:
        self.cfg, self.make_self = cfg, make_self
        pilots = [find_agent(name) for name in cfg.ladder]
        if missing := [name for name, pilot in zip(cfg.ladder, pilots, strict=True) if pilot is None]:
            raise ConfigError(
                f"league.ladder names {missing[0]!r}, which is not a scripted policy, a run, a policy file, or file.py:Class: "
                "correct or remove it."
            )
        if not pilots:
            raise ConfigError(
                "league.ladder is empty, but a league needs at least one opponent, such as league.ladder=[crank]."
            )
        if cfg.advance and cfg.past_selves and cfg.self_share == 1 and len(pilots) > 1:
            raise ConfigError(
                "league.self_share is 1, so the ladder could not advance once a past self has joined: set it lower, or "
                "league.advance=false."
            )
        self.names = list(cfg.ladder)
        self.agents: list[BaseAgent] = [pilot for pilot in pilots if pilot is not None]
        self.stage = 0 if cfg.advance else len(pilots) - 1  # number of the ladder's present opponent
        self.selves: dict[int, Weights] = {}  # weights of past selves in use, by number
        self._new: dict[int, Weights] = {}  # weights that `take_new_selves` has not returned yet
        self.totals = torch.zeros((len(self.agents), 3), dtype=torch.float64)  # recent wins, draws, losses
        self.met = torch.zeros(len(self.agents), dtype=torch.float64)  # all fights
        self.ratings = Ratings()
        for _ in self.agents:
            self.ratings.add()
        self.joined: dict[int, dict[str, float]] = {}
        """By number of an opponent: the learner's fights and rating at the time when the opponent joined."""
        for number in self.active:
            self._note_joining(number)

    # ---- matchmaking -----------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[int]:
        """Return the numbers of the current opponents: the ladder up to the present stage, and the newest past selves."""
        newest = sorted(self.selves)[-self.cfg.past_selves :] if self.cfg.past_selves else []
        return [*range(self.stage + 1), *newest]

    def scores(self) -> Tensor:
        """Return the learner's recent score against each opponent [opponents], 0 to 1, draws as half; 0.5 before any fight."""
        fights = self.totals.sum(1)
        return torch.where(fights > 0, (self.totals[:, 0] + 0.5 * self.totals[:, 1]) / fights.clamp(min=1e-9), 0.5)

    def weights(self) -> list[float]:
        """Return the probability of choosing each opponent for the next fight, [opponents]."""
        hardness = (1.0 - self.scores()).clamp(min=0.0) ** self.cfg.priority + MIN_WEIGHT
        here = torch.zeros_like(hardness)
        here[self.active] = hardness[self.active]
        own = torch.zeros(len(here), dtype=torch.bool)
        own[[number for number in self.active if number in self.selves]] = True
        if own.any():
            share = self.cfg.self_share
            here = torch.where(own, share * here / here[own].sum(), (1 - share) * here / here[~own].sum())
        if float(here.sum()) <= 0:
            here[self.stage] = 1.0
        return (here / here.sum()).tolist()

    # ---- results ---------------------------------------------------------------------------------------------------

    def beaten(self, number: int, at: float) -> bool:
        """Return whether the learner won at least a share `at` of its recent decided fights against an opponent.

        False if fewer than nine tenths of a `window` of fights were fought, or fewer than half of them decided.
        """
        won, drawn, lost = self.totals[number].tolist()
        fights, decided = won + drawn + lost, won + lost
        return fights >= 0.9 * self.cfg.window and decided >= 0.5 * fights and won >= at * decided

    def learn(self, results: Tensor, weights: Callable[[], Weights]) -> None:
        """Update scores and ratings with the fights since the last call, and let the next opponent or a past self join if due.

        Args:
            results: [opponents, 3] wins, draws, losses of the learner, over all ranks.
            weights: Returns the learner's weights; called when a copy of the learner joins.
        """
        known = len(results)
        if known > len(self.agents) or results.shape[1] != 3:
            raise InputError(
                f"results has shape {tuple(results.shape)}, but must be [opponents, 3], with at most {len(self.agents)} "
                "opponents."
            )
        results = results.double()
        fights = results.sum(1)
        keep = (1.0 - fights / self.cfg.window).clamp(min=0.0)
        self.totals[:known] = self.totals[:known] * keep[:, None] + results
        self.met[:known] += fights
        self.ratings.update((results[:, 0] + 0.5 * results[:, 1]).tolist(), fights.tolist())
        joined = False
        if self.stage + 1 < len(self.cfg.ladder) and self.beaten(self.stage, self.cfg.promote_at):
            self.stage += 1
            self.ratings.values[self.stage + 1] = self.ratings.values[0]
            self._note_joining(self.stage)
            joined = True
        top = self.stage + 1 == len(self.cfg.ladder)
        if (self.selves and self.beaten(max(self.selves), self.cfg.self_beaten_at)) or (not self.selves and top):
            joined = True
        if joined and self.cfg.past_selves:
            self.add_self(weights())

    def add_self(self, weights: Weights) -> None:
        """Add a copy of the learner with these weights as an opponent."""
        kept = {name: value.clone() for name, value in to_host(weights).items()}
        number = len(self.agents)
        self.selves[number] = self._new[number] = kept
        self.names.append(f"self {number - len(self.cfg.ladder) + 1}")
        self.agents.append(self.make_self(weights))
        self.totals = torch.cat([self.totals, torch.zeros((1, 3), dtype=torch.float64)])
        self.met = torch.cat([self.met, torch.zeros(1, dtype=torch.float64)])
        self.ratings.add()
        self._note_joining(number)

    def retire(self, flying: Collection[int]) -> None:
        """Release past selves that are no longer opponents, except the numbers in `flying`, whose episodes still run."""
        for number in self.selves.keys() - {*self.active, *flying}:
            del self.selves[number]
            self.agents[number] = Retired()

    def take_new_selves(self) -> dict[int, Weights]:
        """Return the weights of the past selves that joined since the last call, by number, counted from 1."""
        taken, self._new = self._new, {}
        return {number - len(self.cfg.ladder) + 1: weights for number, weights in taken.items()}

    def _note_joining(self, number: int) -> None:
        self.joined[number] = {"fights": float(self.met.sum()), "rating": self.ratings.values[0]}

    def metrics(self) -> dict[str, float]:
        """Return the league's metrics by name, such as `league/elo`."""
        won, drawn, lost = self.totals[self.stage].tolist()
        return {
            "league/rung": float(self.stage + 1),
            "league/opponents": float(len(self.active)),
            "league/elo": self.ratings.values[0],
            "league/fights": float(self.met.sum()),
            "league/rung_win_of_decided": won / max(won + lost, 1.0),
            "league/rung_decided": (won + lost) / max(won + drawn + lost, 1.0),
        }

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        ladder = {str(k): agent.state_dict() for k, agent in enumerate(self.agents[: len(self.cfg.ladder)])}
        return {
            "names": list(self.names),
            "pilots": len(self.cfg.ladder),
            "rung": self.stage,
            "totals": self.totals.clone(),
            "met": self.met.clone(),
            "ratings": list(self.ratings.values),
            "joined": {str(number): dict(when) for number, when in self.joined.items()},
            "selves": {str(number): dict(weights) for number, weights in self.selves.items()},
            "rungs": {
                k: weights for k, weights in ladder.items() if weights
            },  # the run that they come from may change its file
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict` of a league with the same ladder.

        In states of earlier versions, past selves have no files of their own: `take_new_selves` then returns all of them.
        """
        names: Sequence[str] = state["names"]
        pilots = int(state.get("pilots", len(names) - len(state["selves"])))
        if list(names[:pilots]) != list(self.cfg.ladder):
            raise ConfigError(
                f"The run's ladder is {list(names[:pilots])}, but league.ladder is {list(self.cfg.ladder)}: a run keeps its "
                "ladder. Restore the setting, or start a new run with init_from=RUN, which takes over the weights."
            )
        for number, weights in state.get("rungs", {}).items():
            try:
                self.agents[int(number)].load_state_dict(weights)
            except RuntimeError as error:
                raise ConfigError(
                    f"The network of opponent {names[int(number)]} has changed since this run was saved: restore that "
                    "network, or start a new run."
                ) from error
        del self.names[pilots:], self.agents[pilots:]
        self.selves = {int(number): dict(weights) for number, weights in state["selves"].items()}
        self._new = {} if "pilots" in state else dict(self.selves)
        for number, name in enumerate(names[pilots:], pilots):
            self.names.append(name)
            self.agents.append(self.make_self(self.selves[number]) if number in self.selves else Retired())
        self.stage = int(state["rung"]) if self.cfg.advance else pilots - 1
        self.totals, self.met = state["totals"].cpu().clone(), state["met"].cpu().clone()
        self.ratings.values = [float(value) for value in state["ratings"]]
        self.joined = {int(number): dict(when) for number, when in state.get("joined", {}).items()}
        for number in range(int(state["rung"]) + 1, self.stage + 1):  # resumed with advance=false: all join at once
            self._note_joining(number)
