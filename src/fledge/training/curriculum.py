"""Curriculum of a run: the task's own, which gets harder with progress, or a league, which adds opponents to beat.

prepare(progress)    is called before each rollout, while no env is stepping
learn(policy)        is called after each rollout on every rank; adds up the results of all ranks and returns metrics
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fledge.agents.base import BaseAgent, Obs
from fledge.core.errors import ConfigError
from fledge.core.transfer import Fetch
from fledge.envs.base import TensorEnv
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.league.league import League
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import check_fit, find_agent
from fledge.training.config import TrainConfig
from fledge.training.ranks import Ranks


class Curriculum:
    """The task's own curriculum: the difficulty is a function of training progress."""

    def __init__(self, task: Task, settings: Any, envs: Sequence[TensorEnv]) -> None:
        self.task, self.settings, self.envs = task, settings, envs

    def prepare(self, progress: float) -> None:
        for env in self.envs:
            self.task.curriculum.set_progress(env.unwrapped, self.settings, progress)

    def move_to(self, envs: Sequence[TensorEnv]) -> None:
        """Continue in other envs, in which new episodes begin; call it after `learn`."""
        self.envs = envs

    def learn(self, policy: nn.Module) -> dict[str, float]:
        return {}

    def take_new_selves(self) -> dict[int, Mapping[str, Tensor]]:
        """Return the weights of the copies of the policy that a league made opponents since the last call.

        Keys are the numbers of the copies, counted from 1.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class SelfPlayOpponent(BaseAgent):
    """An opponent that plays as the learner did at the start of the rollout: with its weights, and sampled actions."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.weights = policy.state_dict
        self.copy: Any = copy.deepcopy(policy).eval().requires_grad_(False)
        self.hidden_size = int(getattr(policy, "hidden_size", 0))

    def act(self, obs: Obs, deterministic: bool = True) -> Any:
        return self.copy.act(obs, deterministic=False)

    def act_with(self, obs: Obs, hidden: Tensor | None, deterministic: bool = True) -> Any:
        return self.copy.act_with(obs, hidden, deterministic=False)


class LeagueCurriculum(Curriculum):
    """Sets a league's opponents in every env.

    Args:
        self_play: Opponent in addition to the league's, in a fraction `league.self_play` of the episodes; the results of
            these episodes do not count in the league.
    """

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
        self.self_play, self.league, self.ranks = self_play, league, ranks
        self.move_to(envs)

    def move_to(self, envs: Sequence[TensorEnv]) -> None:
        super().move_to(envs)
        worlds = [env.unwrapped for env in envs]
        self.worlds = [world for world in worlds if isinstance(world, OpponentWrapper)]
        if len(self.worlds) != len(worlds):
            raise ConfigError(
                "league.ladder needs an env with an opponent, but env.opponent is empty, so the policy flies both sides: "
                "set env.opponent, or leave league.ladder empty."
            )
        names = self.worlds[0].outcomes
        self.columns = [[value for value, name in names.items() if name == wanted] for wanted in ("win", "loss")]
        self.known: Fetch | None = None  # of this rank, [opponents]: results of the last rollout, and running episodes
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
        self.known = Fetch([torch.cat([met, flying[:, None]], dim=1)[0 if self.self_play is None else 1 :]])
        if self.self_play is not None:
            self.self_play.copy.load_state_dict(self.self_play.weights())
        self._set_opponents()

    def learn(self, policy: nn.Module) -> dict[str, float]:
        if self.known is not None:
            known = self.ranks.sum(self.known.get()[0].double())
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
    """Return a league curriculum if the config has a ladder of opponents, else the task's own curriculum."""
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
