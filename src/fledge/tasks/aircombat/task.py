"""The air-combat task: duels between two fighters with guided missiles."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fledge.agents import build
from fledge.agents.base import BaseAgent
from fledge.agents.build import LearnedPolicy
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv
from fledge.envs.opponent_wrapper import OpponentWrapper
from fledge.envs.placement import EnvPlacement
from fledge.tasks.aircombat.config import AircombatConfig, AircombatPolicyConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv, duel_of
from fledge.tasks.aircombat.match_stats import DuelMatch
from fledge.tasks.aircombat.pilots import OTHER_NAMES, PILOTS, make_pilot
from fledge.tasks.aircombat.policy import build_duel_policy, describe_duel_policy
from fledge.tasks.aircombat.view.view import AircombatView
from fledge.tasks.base import Task
from fledge.tasks.metrics import TaskMetrics
from fledge.tasks.policy_factory import PolicyFactory, env_specs
from fledge.tasks.policy_loader import check_fit, find_agent, unknown_policy
from fledge.tasks.presets import Presets

HERE = Path(__file__).parent
EVAL_DUELS = 512
DECLARED = ("state", "missiles", "spacetime", "mask")  # observations of AircombatEnv; a subclass may add others


class DuelPolicies(PolicyFactory):
    """Policies of the duel: its own network for PPO, general networks for the other algorithms."""

    config = AircombatPolicyConfig
    folder = HERE / "policies"
    pilot_aliases = OTHER_NAMES

    def describe(self, task: Task, algo: str, env: AircombatConfig, policy: AircombatPolicyConfig) -> dict[str, Any]:
        observation, action = env_specs(task, dataclasses.replace(env, opponent=""))  # the same against any opponent
        if algo != "ppo":
            return build.describe(algo, observation, action, policy.hidden, gru_size=policy.gru_size)
        extra = {name: spec for name, spec in observation.items() if name not in DECLARED}
        return describe_duel_policy(env.missile.carried, env.spacetime and policy.spacetime, action, policy, extra)

    def build(self, description: Mapping[str, Any]) -> LearnedPolicy:
        return build_duel_policy(description) if description.get("kind") == "duel" else super().build(description)


class AircombatMetrics(TaskMetrics):
    """Labels of the outcomes of duels, and classes of duels by scenario."""

    unit = "duels"
    labels = {"win": "win", "loss": "loss", "draw": "both die", "spent": "spent", "timeout": "time"}
    outcome_legend = "win, loss: one side died. both die: in one step. spent: no missiles left. time: out of time."
    classes = tuple(kind.value for kind in Scenario if kind is not Scenario.mixed)

    def classify(self, env: TensorEnv) -> Tensor:
        duel = duel_of(env)  # scenarios are numbered as `classes`; mixed, the last, never occurs in a fight
        return duel.state["kind"].cpu().long().repeat_interleave(env.num_envs // duel.num_duels)

    def env_facts(self, cfg: AircombatConfig) -> dict[str, Any]:
        return {"scenario": cfg.scenario.value, "opponent": cfg.opponent or "self-play"}

    def env_label(self, cfg: AircombatConfig) -> str:
        return f"{cfg.scenario.value} vs {cfg.opponent}" if cfg.opponent else cfg.scenario.value

    def queries(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        from fledge.tasks.aircombat.spacetime.query import check_envelope, query_envelope

        return {"envelope": query_envelope, "envelope_check": check_envelope}


class AircombatTask(Task):
    """Duels between two fighters with guided missiles."""

    name = "aircombat"
    config = AircombatConfig
    env = AircombatEnv
    primary_metric = "win"
    presets = Presets(HERE / "presets", defaults={"env": {"opponent": "pursuit"}})
    policy = DuelPolicies()
    view = AircombatView()
    metrics = AircombatMetrics()
    match = DuelMatch()

    def make_env(self, cfg: AircombatConfig, placement: EnvPlacement = EnvPlacement()) -> TensorEnv:
        """Make duels against `cfg.opponent`; if that is empty, the caller controls both sides."""
        p = placement
        seed = derive_seed(p.seed, Purpose.HELD_OUT) if p.held_out else p.seed
        if not cfg.opponent:
            return self.env(cfg, p.device, seed, p.num_threads, p.env_offset, p.total_envs)
        rows, total = dataclasses.replace(cfg, num_envs=2 * cfg.num_envs), 2 * (p.total_envs or cfg.num_envs)
        opponent = find_agent(self, cfg.opponent)
        if opponent is None:
            raise unknown_policy(self, cfg.opponent, "env.opponent")
        both = self.env(rows, p.device, seed, p.num_threads, 2 * p.env_offset, total)
        try:
            check_fit(opponent.to(p.device), both)
        except ConfigError:
            both.close()
            raise
        return OpponentWrapper(both, [opponent], env_offset=p.env_offset)

    def evaluation(self, cfg: AircombatConfig) -> AircombatConfig:
        """Return the same settings, with the same opponent, for EVAL_DUELS duels."""
        return dataclasses.replace(cfg, num_envs=EVAL_DUELS * (1 if cfg.opponent else 2))

    def pilots(self) -> Mapping[str, Callable[..., BaseAgent]]:
        return {name: functools.partial(make_pilot, name) for name in PILOTS}
