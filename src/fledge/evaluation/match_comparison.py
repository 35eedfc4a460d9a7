"""Evaluate agents in matches of every pair: the cross-table, recordings, pictures, and the reasons for losses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fledge.agents.base import BaseAgent
from fledge.core.terminal import counting, make_console, say
from fledge.evaluation.env_config import tell_differences
from fledge.evaluation.episodes import on_device
from fledge.evaluation.match_agents import fitting_pilots, match_env, named_agents, trained_elsewhere
from fledge.evaluation.match_figures import explain_losses
from fledge.evaluation.matches import Match, cross_table
from fledge.evaluation.recordings import labelled_paths, save_recording
from fledge.evaluation.results import Evaluation
from fledge.tasks.base import Task
from fledge.tasks.metrics import env_label
from fledge.tasks.policy_loader import LoadedPolicy
from fledge.tasks.view.trajectory import Trajectory

if TYPE_CHECKING:
    from fledge.evaluation.comparison import EvalRequest


def run_matches(policies: list[LoadedPolicy], request: EvalRequest) -> Evaluation:
    """Let every policy fight every other policy, and return the cross-table."""
    task = policies[0].task
    cfg = match_env(policies, request)
    if len(policies) == 1:  # it fights the task's scripted policies
        policies = policies + fitting_pilots(task, cfg, but=policies[0].name)
    agents = named_agents(policies)
    changed = trained_elsewhere(policies, [name for name, _ in agents], cfg)
    for name, differences in {} if request.quiet else changed.items():
        say(make_console(stderr=True), tell_differences(name, differences))
    kept: list[Trajectory] = []
    pairs = list(itertools.combinations(range(len(agents)), 2))
    labels = [f"{agents[i][0]}_vs_{agents[j][0]}" for i, j in pairs]
    files, losses = list[str](), list[dict[str, Any]]()

    def keep(i: int, j: int, match: Match) -> None:
        """Write a recording and a picture of two agents' most interesting fights, and collect the reasons for losses."""
        who = [agents[i][0], agents[j][0]]
        facts = {"agents": who, **match_facts(task, cfg, request)}
        number = pairs.index((i, j))
        kept.extend(match.highlights)
        told = explain_losses(task, match.highlights, who)
        if request.record:
            path = labelled_paths(request.record, labels)[number]
            save_recording(path, task, match.highlights, match.decision_s, facts)
            files.append(str(path))
            losses.extend({**row, "recording": str(path)} for row in told)
        if request.picture:
            path = labelled_paths(request.picture, labels)[number]
            task.view.draw(match.highlights, f"{who[0]} (blue) against {who[1]} (red)").savefig(path)
            files.append(str(path))

    shown = request.record_episodes if request.record else 6 if request.picture or request.keep_episodes else 0
    result = fly_cross_table(agents, task, cfg, request, highlights=shown, on_match=keep if shown else None)
    result |= {"files": files} if files else {}
    result |= {"losses": losses} if request.record else {}
    result |= {"changed": changed} if changed else {}
    return Evaluation([result], task, trajectories=kept)


def match_facts(task: Task, cfg: Any, request: EvalRequest) -> dict[str, Any]:
    return {"seed": request.seed, "world": env_label(task, task.match.match_config(cfg, 1))}


def fly_cross_table(
    agents: Sequence[tuple[str, BaseAgent]], task: Task, cfg: Any, request: EvalRequest, **options: Any
) -> dict[str, Any]:
    """Compute the `cross_table` of a request with a progress bar; return it with the request's seed and the env's label."""
    fights = request.episodes * len(agents) * (len(agents) + 1) // 2
    options |= {"num_threads": request.threads, "device": request.place, "deterministic": request.deterministic}
    with (
        counting(make_console(stderr=True), f"{len(agents)} agents", fights, request.quiet) as on_progress,
        on_device([agent for _, agent in agents], request.place),
    ):
        found = cross_table(agents, task, cfg, request.episodes, request.seed, on_progress=on_progress, **options)
    return found | match_facts(task, cfg, request)
