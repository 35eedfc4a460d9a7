"""Agents of a cross-table: distinct names, a fitting env config, separate memory."""

import dataclasses
import json
from typing import ClassVar

import pytest
import torch
from click.testing import CliRunner

from fledge.agents.base import Action, Obs
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.evaluation.comparison import EvalRequest, task_of
from fledge.evaluation.match_agents import fitting_pilots, match_env, named_agents, trained_elsewhere
from fledge.evaluation.match_tables import same_fights
from fledge.evaluation.matches import cross_table
from fledge.tasks.aircombat.config import AircombatConfig, AircombatPolicyConfig, MissileConfig, Scenario
from fledge.tasks.aircombat.pilots import PlaceholderPilot, RandomPilot
from fledge.tasks.policy_factory import TrainedEnv
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge.tasks.registry import find_task

TASK = find_task("aircombat")
QUICK = AircombatConfig(spacetime=False, scenario=Scenario.chase, max_episode_s=20.0)


class Remembers(PlaceholderPilot):
    """Notes who has acted."""

    acted: ClassVar[set[int]] = set()

    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        self.acted.add(id(self))
        return super().act(obs)


def entrant(name: str, **env: object) -> LoadedPolicy:
    return LoadedPolicy(name, PlaceholderPilot(), TASK, TrainedEnv(dict(env), 1.0) if env else None)


def test_who_meets_himself_is_two() -> None:
    Remembers.acted.clear()
    cross_table([("one", Remembers())], TASK, QUICK, 2, num_threads=1)
    assert len(Remembers.acted) == 2


def test_a_twin_has_chances_of_its_own() -> None:
    pilot = RandomPilot()
    twin = pilot.clone()
    ours, theirs = (torch.rand(4, generator=each.generator) for each in (pilot, twin))
    assert not torch.equal(ours, theirs)
    assert torch.equal(torch.rand(4, generator=RandomPilot().clone().generator), theirs)


def test_labels_tell_entrants_apart() -> None:
    names = ["a/last", "b/last", "crank", "a/last", "c/other", "crank"]
    labels = [label for label, _ in named_agents([entrant(name) for name in names])]
    assert labels == ["a/last", "b/last", "crank", "a/last (2)", "other", "crank (2)"]
    agents = [agent for _, agent in named_agents([entrant("crank"), entrant("crank")])]
    assert agents[0] is not agents[1]


def test_an_opponent_of_the_world_has_no_meaning_where_all_meet() -> None:
    policies = [load_policy("placeholder", TASK)]
    for word in ("env.opponent=crank", "opponent=crank"):
        with pytest.raises(ConfigError, match=r"opponent=crank has no effect in a cross-table.*add crank to"):
            match_env(policies, EvalRequest([], [word]))
    cfg = match_env(policies, EvalRequest([], ["env.scenario=chase", "env.opponent="]))
    assert cfg.scenario is Scenario.chase
    with pytest.raises(ConfigError, match="in one env"):
        match_env(policies, EvalRequest([], vary=("env.scenario", ["chase"])))


def test_an_agent_that_does_not_fit_the_env_config_is_named_before_the_first_fight() -> None:
    few = dataclasses.replace(QUICK, missile=MissileConfig(carried=3))
    described = TASK.policy.describe(TASK, "ppo", few, AircombatPolicyConfig(hidden=[8], tokens=4))
    agents = [("straight", PlaceholderPilot()), ("runs/three", TASK.policy.build(described))]
    with pytest.raises(ConfigError, match=r"runs/three does not fit this env: .*missiles as shape \[6, 10\]"):
        cross_table(agents, TASK, QUICK, 2)


def test_alone_in_a_world_without_the_graph_it_meets_the_pilots_that_need_none() -> None:
    assert [policy.name for policy in fitting_pilots(TASK, QUICK)] == ["placeholder", "random"]
    assert len(fitting_pilots(TASK, AircombatConfig(), but="crank")) == len(TASK.pilots()) - 1


def test_where_a_policy_was_trained_in_another_world_is_told() -> None:
    policies = [entrant("pilot"), entrant("same", reward="zero"), entrant("other", **{"missile.carried": 2})]
    told = trained_elsewhere(policies, [policy.name for policy in policies], AircombatConfig())
    assert told == {"other": {"env.missile.carried": {"trained": 2, "flown": 6}}}


def test_a_pilot_s_name_says_which_task_is_meant() -> None:
    assert task_of(["crank", "pursuit"]) is TASK
    assert task_of(["straight"]) is find_task("navigation")
    assert task_of(["nobody"]) is None
    asked = ["eval", "random", "random", "env.spacetime=false", "env.scenario=chase", "env.max_episode_s=20"]
    done = CliRunner().invoke(main, [*asked, "--episodes", "2", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["agents"] == ["random", "random (2)"]


def test_fights_that_are_all_the_same_one_are_told() -> None:
    cfg = dataclasses.replace(QUICK, scenario=Scenario.head_on)
    agents = [("one", PlaceholderPilot()), ("other", PlaceholderPilot())]
    result = cross_table(agents, TASK, cfg, 64, num_threads=1)
    assert result["table"][0][1]["distinct"] < 3
    assert same_fights(result).startswith("Only 1 of 64 fights of one against other are distinct")
    result["table"][0][1]["distinct"] = 20
    assert same_fights(result) == ""
