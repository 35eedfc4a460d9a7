"""Matches: agents against each other in held-out fights, and the cross-table of all of them.

Every pair flies the same starts twice, with sides swapped, so that neither the side nor the geometry favours an agent. A fight
is won, lost, or undecided (both died, neither can win any more, or time ran out). The share of decided fights is printed
beside every rate, because running away is not winning.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.agents.base import Action, BaseAgent, Obs
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv, make_action_buffer
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.episodes import TEST_SEED, PolicyResult, fly_wave, wilson
from fledge.evaluation.match_agents import check_agents
from fledge.evaluation.match_figures import CrossTableFigures
from fledge.evaluation.recorder import Highlights, Recorder
from fledge.league.elo import arena_rating, fit_ratings
from fledge.tasks.base import Task
from fledge.tasks.match import MatchRules, MatchStats, Notes
from fledge.tasks.metrics import EpisodeMetrics
from fledge.tasks.policy_loader import check_fit
from fledge.tasks.view.trajectory import Trajectory

AT_ONCE = 1024  # fights simulated at once, at most


@dataclass
class Match:
    """Outcomes of fights between two agents, from the view of the first."""

    outcomes: np.ndarray  # [fights] values of the env's outcome
    names: dict[int, str]  # value of an outcome -> its name
    kinds: np.ndarray  # [fights] index into classes
    classes: Sequence[str]  # names of the classes of episodes
    lengths_s: np.ndarray  # [fights] simulated seconds
    decision_s: float = 1.0
    highlights: list[Trajectory] = dataclasses.field(default_factory=list)
    """The most interesting fights, if requested; outcomes are the first agent's."""
    notes: Notes = dataclasses.field(default_factory=dict)
    """Numbers that the task's MatchStats recorded, by name, [fights, 2] each: first agent, second agent."""
    starts: Sequence[str] = ()
    random_starts: Sequence[str] = ()
    """Kinds of starts, as in MatchStats."""

    def count(self, name: str) -> int:
        return sum(int((self.outcomes == value).sum()) for value, known in self.names.items() if known == name)

    def by_class(self) -> dict[str, dict[str, Any]]:
        """Return the shares of wins and losses and the number of fights, by class of episode."""
        table = {}
        for index, name in enumerate(self.classes):
            if (chosen := self.kinds == index).any():
                part, fights = dataclasses.replace(self, outcomes=self.outcomes[chosen]), int(chosen.sum())
                table[name] = {k: round(part.count(k) / fights, 4) for k in ("win", "loss")} | {"fights": fights}
        return table

    def as_dict(self) -> dict[str, Any]:
        """Return the results as `fledge eval --json` prints them."""
        won, lost = self.count("win"), self.count("loss")
        fights, decided = len(self.outcomes), won + lost
        low, high = wilson(won, decided) if decided else (0.0, 1.0)
        return {
            "win": round(won / fights, 4),
            "draw": round(1 - decided / fights, 4),
            "loss": round(lost / fights, 4),
            "win_of_decided": round(won / decided, 4) if decided else None,
            "ci95": [round(low, 4), round(high, 4)],
            "decided": round(decided / fights, 4),
            "fights": fights,
            "undecided": {
                name: round(self.count(name) / fights, 4) for name in self.names.values() if name not in ("win", "loss")
            },
            "by_class": self.by_class(),
            "mean_seconds": round(float(self.lengths_s.mean()), 1),
        }

    def swapped(self) -> Match:
        """Return the same fights from the view of the second agent."""
        value = {name: number for number, name in self.names.items()}
        other = self.outcomes.copy()
        other[self.outcomes == value["win"]] = value["loss"]
        other[self.outcomes == value["loss"]] = value["win"]
        notes = {name: value[:, ::-1] for name, value in self.notes.items()}
        return dataclasses.replace(self, outcomes=other, notes=notes)


def play(
    first: BaseAgent,
    second: BaseAgent,
    task: Task,
    cfg: Any,
    fights: int,
    seed: int = TEST_SEED,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    deterministic: bool = True,
    highlights: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Match:
    """Let two agents fight; each start is flown twice, with sides swapped.

    Args:
        cfg: Env config; its `num_envs` is ignored.
        fights: Number of fights, an even number.
        highlights: Number of fights to record step by step: losses and draws first, and the longest of each outcome.
        on_progress: Called with the number of fights finished so far.
    """
    if fights < 2 or fights % 2:
        raise ConfigError(
            f"episodes is {fights}, but must be even and at least 2: each start is flown from both sides."
        )
    parts, noted = list[tuple[np.ndarray, ...]](), list[Notes]()
    done, wave = 0, 0
    kept = Highlights(highlights, task.primary_metric) if highlights else None
    while done < fights:
        count = min(AT_ONCE, fights - done) // 2
        wave_seed = derive_seed(seed, Purpose.WAVE, wave) if wave else seed
        placement = EnvPlacement(device=device, seed=wave_seed, num_threads=num_threads, held_out=True)
        for side in (0, 1):
            with contextlib.closing(task.make_env(task.match.match_config(cfg, count), placement)) as env:
                for agent in (first, second):
                    check_fit(agent, env)
                rows = np.arange(side, 2 * count, 2)
                recorder = Recorder(task.view, env, 2 * done, 0, [], kept, rows) if kept else None
                result, measured = PolicyResult(2 * count, task.primary_metric), MatchMetrics(task.match)
                pair = AgentPair(first, second, side, env)
                fly_wave(pair, env, result, 0, deterministic, task.metrics, measured, recorder)
                parts.append((result.outcomes[rows], result.kinds[rows], result.lengths_s[rows]))
                stats = measured.stats
                noted.append({name: value[:, :: 1 - 2 * side] for name, value in stats.notes().items()})
            done += count
            if on_progress:
                on_progress(done)
        wave += 1
    outcomes, kinds, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Match(
        outcomes,
        result.names,
        kinds,
        task.metrics.classes,
        lengths,
        result.decision_s,
        kept.chosen() if kept else [],
        {name: np.concatenate([part[name] for part in noted]) for name in noted[0]},
        stats.starts,
        stats.random_starts,
    )


class AgentPair(BaseAgent):
    """Combines two agents into one that acts for both sides of every fight.

    Rows 2 i and 2 i + 1 of the env are the sides of fight i; `first` controls rows 2 i + `side`, `second` the others.
    """

    def __init__(self, first: BaseAgent, second: BaseAgent, side: int, env: TensorEnv) -> None:
        super().__init__(env.num_envs, env.device)
        sides = ((first, side), (second, 1 - side))
        self.seats = [(agent, torch.arange(k, env.num_envs, 2, device=env.device)) for agent, k in sides]
        self.actions: Any = make_action_buffer(env.action_spec, (env.num_envs,), env.device)

    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        for agent, rows in self.seats:
            action = agent.act({name: value[rows] for name, value in obs.items()}, deterministic)
            if isinstance(action, torch.Tensor):
                self.actions[rows] = action.to(self.actions.dtype)
            else:
                for name, part in action.items():
                    self.actions[name][rows] = part.to(self.actions[name].dtype)
        return self.actions

    def reset(self, env_mask: torch.Tensor | None = None) -> None:
        for agent, rows in self.seats:
            agent.reset(None if env_mask is None else env_mask[rows.cpu()])


class MatchMetrics(EpisodeMetrics):
    """Forwards the steps of an env, which has two rows per fight, to the task's MatchStats."""

    def __init__(self, rules: MatchRules) -> None:
        self.rules, self.stats = rules, MatchStats()

    def begin(self, env: TensorEnv) -> None:
        self.stats = self.rules.match_stats(env)

    def before_step(self, obs: Obs, action: Action, counted: torch.Tensor) -> None:
        self.stats.before_step(obs, action, counted[::2])

    def after_step(self, outcome: torch.Tensor, counted: torch.Tensor) -> None:
        self.stats.after_step(outcome, counted[::2])


def cross_table(
    agents: Sequence[tuple[str, BaseAgent]],
    task: Task,
    cfg: Any,
    fights: int,
    seed: int = TEST_SEED,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    deterministic: bool = True,
    highlights: int = 0,
    only_first: bool = False,
    on_match: Callable[[int, int, Match], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Let every agent fight every other agent and a clone of itself, and return the results of all pairs.

    Args:
        highlights: Number of fights of each pair to record step by step.
        only_first: Of these, keep only fights in which the first agent takes part.
        on_match: Called with the indices of two agents and their match, when it is over.

    Returns:
        "agents": their names; "table"[i][j]: results of agent i against agent j; "elo": for each agent its most likely
        "rating" (the mean of all is 1000), the rating's 95 % interval "ci95", and "arena": the rating that follows from its
        score against all others (`arena_rating`). If the task has match statistics, also "behaviour": how each
        agent fought (also in each entry of "table"), and "weak": each agent's worst opponent and starts.
    """
    check_agents(agents, task, cfg)
    names, figures = [name for name, _ in agents], CrossTableFigures(task.match, len(agents))
    table: list[list[Any]] = [[None] * len(agents) for _ in agents]
    finished = 0

    def count_on(done: int) -> None:
        if on_progress:
            on_progress(finished + done)

    for i, (_, first) in enumerate(agents):
        for j in range(i, len(agents)):
            second = agents[j][1] if i != j else first.clone()
            kept = highlights if i != j and (i == 0 or not only_first) else 0
            options: Any = {
                "device": device,
                "num_threads": num_threads,
                "deterministic": deterministic,
                "highlights": kept,
            }
            match = play(first, second, task, cfg, fights, seed, on_progress=count_on, **options)
            finished += fights
            figures.note(i, j, match)
            table[i][j] = match.as_dict()
            if i != j:
                table[j][i] = match.swapped().as_dict()
                if on_match:
                    on_match(i, j, match)
    result = {"agents": names, "table": table, "elo": ratings(table), "episodes": fights}
    if figures.records:
        for i, j in figures.records:
            table[i][j] |= {"behaviour": figures.pair(i, j), "distinct": figures.records[i, j].distinct()}
        result |= {"behaviour": figures.agents(), "weak": figures.weak(names)}
        result["random_starts"] = list(match.random_starts)
    return result


def ratings(table: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the Elo ratings of all agents in a cross-table."""
    others = ~np.eye(len(table), dtype=bool)
    fights = np.array([[row["fights"] for row in rows] for rows in table], float)
    scores = fights * [[row["win"] + 0.5 * row["draw"] for row in rows] for rows in table]
    if len(table) < 2:
        return []
    rating, half = fit_ratings(scores, fights)
    arena = [arena_rating(scores[i][others[i]].sum() / fights[i][others[i]].sum(), int(fights[i][others[i]].sum()))
             for i in range(len(table))]  # fmt: skip
    return [
        {"rating": round(float(r), 1), "ci95": [round(float(r - h), 1), round(float(r + h), 1)], "arena": round(a, 1)}
        for r, h, a in zip(rating, half, arena, strict=True)
    ]
