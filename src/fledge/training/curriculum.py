"""Curriculum of a run: harder with progress, as the task defines it, or by the opponents that the learner beats (a league).

prepare(progress)    before a rollout, while no env is stepping
learn(policy)        after it, on every rank: take in the results of all ranks; return metrics
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fledge.agents.base import BaseAgent, Obs
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.league.league import League
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import check_fit, find_agent
from fledge.training.config import TrainConfig
from fledge.training.ranks import Ranks


class Curriculum:
    """The task's curriculum, a function of progress."""

    def __init__(self, task: Task, settings: Any, envs: Sequence[TensorEnv]) -> None:
        self.task, self.settings, self.envs = task, settings, envs

    def prepare(self, progress: float) -> None:
        for env in self.envs:
            self.task.curriculum.set_progress(env.unwrapped, self.settings, progress)

    def learn(self, policy: nn.Module) -> dict[str, float]:
        return {}

    def take_new_selves(self) -> dict[int, Mapping[str, Tensor]]:
        """Return weights of new past selves, to be saved, by their numbers from 1."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class SelfPlayOpponent(BaseAgent):
    """The learner with its weights of the rollout's start, exploring as it does. Self-play exposes its weaknesses."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.weights = policy.state_dict
        self.copy: Any = copy.deepcopy(policy).eval().requires_grad_(False)

    def act(self, obs: Obs, deterministic: bool = True) -> Any:
        return self.copy.act(obs, deterministic=False)


class LeagueCurriculum(Curriculum):
    """Puts a league's opponents into every env; `self_play` is first, in a share of episodes that the league ignores."""

    def __init__(
        self,
        task: Task,
        settings: Any,
        envs: Sequence[TensorEnv],
        league: League,
        ranks: Ranks,
        self_play: SelfPlayOpponent | None = None,
    ) -> None:
        super().__init__(task, settings, envs)
        self.self_play = self_play
        worlds = [env.unwrapped for env in envs]
        self.worlds = [world for world in worlds if isinstance(world, OpponentWrapper)]
        if len(self.worlds) != len(worlds):
            raise ConfigError("A league needs an env with an opponent, but this is self-play: set env.opponent.")
        self.league, self.ranks = league, ranks
        names = self.worlds[0].outcomes
        self.columns = [[value for value, name in names.items() if name == wanted] for wanted in ("win", "loss")]
        self.known: Tensor | None = None  # of this rank, [opponents]: results of the last rollout, and running episodes
        self._set_opponents()

    def _set_opponents(self) -> None:
        agents, weights = list(self.league.agents), self.league.weights()
        if self.self_play is not None:
            share = self.league.cfg.self_play
            agents, weights = [self.self_play, *agents], [share, *((1.0 - share) * weight for weight in weights)]
        for world in self.worlds:
            world.set_opponents(agents, weights)

    def prepare(self, progress: float) -> None:
        super().prepare(progress)
        met = torch.stack([world.take_results() for world in self.worlds]).sum(0)
        flying = torch.stack([world.in_the_air() for world in self.worlds]).sum(0)
        self.known = torch.cat([met, flying[:, None]], dim=1)[0 if self.self_play is None else 1 :]
        if self.self_play is not None:
            self.self_play.copy.load_state_dict(self.self_play.weights())
        self._set_opponents()

    def learn(self, policy: nn.Module) -> dict[str, float]:
        if self.known is not None:
            known = self.ranks.sum(self.known.double())
            results, flying = known[:, :-1], {*known[:, -1].nonzero().flatten().tolist(), *self.league.active}
            won, lost = (results[:, columns].sum(1) for columns in self.columns)
            drawn = results.sum(1) - won - lost
            self.league.learn(torch.stack([won, drawn, lost], dim=1), policy.state_dict)
            self.league.retire(flying)  # neither in the air when this rollout began, nor drawn since, nor to be drawn
            if not self.ranks.is_first:
                self.take_new_selves()  # the first rank writes them
            self.known = None
        return self.league.metrics()

    def take_new_selves(self) -> dict[int, Mapping[str, Tensor]]:
        return self.league.take_new_selves()

    def state_dict(self) -> dict[str, Any]:
        return self.league.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.league.load_state_dict(state)
        self._set_opponents()


def make_curriculum(
    task: Task, cfg: TrainConfig, envs: Sequence[TensorEnv], policy: nn.Module, device: str, ranks: Ranks
) -> Curriculum:
    """Make a league if the config names a ladder, else the task's curriculum."""
    if not cfg.league.ladder:
        return Curriculum(task, cfg.curriculum, envs)
    if task.match.sides != 2:
        raise ConfigError(f"league.ladder is for tasks with two sides, but {task.name} has one: leave it empty.")

    def make_self(weights: Mapping[str, Tensor]) -> Any:
        past = copy.deepcopy(policy)
        past.load_state_dict(dict(weights))
        return past.to(device).eval().requires_grad_(False)

    def join(name: str) -> Any:
        agent = find_agent(task, name)
        if agent is None:
            return None
        try:
            check_fit(agent, envs[0])  # now, not when it joins
        except ConfigError as error:
            raise ConfigError(f"league.ladder names {name!r}, which does not fit this env: {error}") from error
        return agent.to(device)

    league = League(cfg.league, join, make_self)
    self_play = SelfPlayOpponent(policy) if cfg.league.self_play else None
    return LeagueCurriculum(task, cfg.curriculum, envs, league, ranks, self_play)
