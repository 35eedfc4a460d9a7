"""Matches: agents against each other in the held-out world, both sides, and the cross-table of all of them.

Every pair flies the same starts twice, with sides swapped, so that nothing in a figure comes from the side or from luck with
the geometry. A fight is won, lost, or undecided (both died, nobody could win any more, or the clock): the share of decided
fights stands beside every rate, because running away is not winning.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.agents.base import Action, BaseAgent
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv, make_action_buffer
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.episodes import TEST_SEED, wilson
from fledge.evaluation.match_agents import check_agents
from fledge.evaluation.match_figures import CrossTableFigures
from fledge.evaluation.recorder import Highlights, Recorder
from fledge.league.elo import arena_rating, fit_ratings
from fledge.tasks.base import Task
from fledge.tasks.match import MatchStats, Notes
from fledge.tasks.policies import check_fit
from fledge.tasks.view.trajectory import Trajectory

AT_ONCE = 1024  # fights


@dataclass
class Match:
    """How fights between two agents ended, for the first of them."""

    outcomes: np.ndarray  # [fights] values of the env's outcome
    names: dict[int, str]  # of those values
    kinds: np.ndarray  # [fights] index into classes
    classes: Sequence[str]  # kinds of episodes
    lengths_s: np.ndarray  # [fights] simulated seconds
    decision_s: float = 1.0
    highlights: list[Trajectory] = dataclasses.field(default_factory=list)
    """Of the fights, the most interesting ones, if asked for; outcomes are the first agent's."""
    notes: Notes = dataclasses.field(default_factory=dict)
    """What the task's umpire noted of them, [fights, 2]: of the first agent, and of the second."""
    starts: Sequence[str] = ()
    random_starts: Sequence[str] = ()
    """The umpire's kinds of starts."""

    def count(self, name: str) -> int:
        return sum(int((self.outcomes == value).sum()) for value, known in self.names.items() if known == name)

    def by_class(self) -> dict[str, dict[str, Any]]:
        """Wins, losses and all fights by how they began."""
        table = {}
        for index, name in enumerate(self.classes):
            if (chosen := self.kinds == index).any():
                part = dataclasses.replace(self, outcomes=self.outcomes[chosen])
                counted = {"win": part.count("win"), "loss": part.count("loss")}
                table[name] = {k: round(v / int(chosen.sum()), 4) for k, v in counted.items()} | {
                    "fights": int(chosen.sum())
                }
        return table

    def as_dict(self) -> dict[str, Any]:
        """Figures as the command line prints them."""
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
        """The same fights, for the second agent."""
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
        cfg: The world; its number of envs is chosen here.
        fights: An even number of them.
        highlights: How many fights to keep whole: losses and draws first, the longest of each outcome.
        on_progress: Called with the number of fights finished so far.
    """
    if fights < 2 or fights % 2:
        raise ConfigError(
            f"episodes is {fights}, but each start is flown from both sides: take an even number, at least 2."
        )
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    noted: list[Notes] = []
    done, wave = 0, 0
    kept = Highlights(highlights, task.primary_metric) if highlights else None
    while done < fights:
        count = min(AT_ONCE, fights - done) // 2
        wave_seed = derive_seed(seed, Purpose.WAVE, wave) if wave else seed
        for side in (0, 1):
            env = task.make_env(
                task.match.match_config(cfg, count),
                EnvPlacement(device=device, seed=wave_seed, num_threads=num_threads, held_out=True),
            )
            try:
                for agent in (first, second):
                    check_fit(agent, env)
                recorder = (
                    Recorder(task.view, env, 2 * done, 0, [], kept, np.arange(side, 2 * count, 2)) if kept else None
                )
                results, umpire = _fight(first, second, side, task, env, deterministic, recorder)
                parts.append(results)
                noted.append({name: value[:, :: 1 - 2 * side] for name, value in umpire.notes().items()})
                decision_s = env.decision_s
                names = {value: name for value, name in env.outcomes.items() if value}
            finally:
                env.close()
            done += count
            if on_progress:
                on_progress(done)
        wave += 1
    outcomes, kinds, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Match(
        outcomes,
        names,
        kinds,
        task.metrics.classes,
        lengths,
        decision_s,
        kept.chosen() if kept else [],
        {name: np.concatenate([part[name] for part in noted]) for name in noted[0]},
        umpire.starts,
        umpire.random_starts,
    )


def _fight(
    first: BaseAgent,
    second: BaseAgent,
    side: int,
    task: Task,
    env: TensorEnv,
    deterministic: bool,
    recorder: Recorder | None,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], MatchStats]:
    """One fight in every pair of rows, `first` on `side`: its outcomes, their classes and lengths, and who watched."""
    fights = env.num_envs // 2
    rows = {id_: torch.arange(id_, env.num_envs, 2, device=env.device) for id_ in (side, 1 - side)}
    seats = [(first, rows[side]), (second, rows[1 - side])]
    actions = make_action_buffer(env.action_spec, (env.num_envs,), env.device)
    out = env.make_buffers()
    env.reset(out=out)
    for agent, _ in seats:
        agent.reset()
    kinds, umpire = task.metrics.classify(env).view(fights, 2)[:, 0].numpy(), task.match.match_stats(env)
    outcomes, lengths = np.zeros(fights, np.int64), np.zeros(fights)
    active = torch.ones(fights, dtype=torch.bool)
    while active.any():
        if recorder:
            recorder.before_step(out["obs"])
        for agent, seat in seats:
            seen = {name: value[seat] for name, value in out["obs"].items()}
            _put(actions, agent.act(seen, deterministic), seat)
        umpire.before_step(out["obs"], actions, active)
        env.step(actions, out=out)
        umpire.after_step(out["outcome"], active)
        if recorder:
            recorder.after_step(out["outcome"], out["episode_return"])
        over = (out["terminated"] | out["truncated"]).view(fights, 2)[:, side].cpu()
        if not over.any():
            continue
        for agent, _ in seats:
            agent.reset(over)
        ended = (over & active).nonzero().flatten()
        where = ended.numpy()
        outcomes[where] = out["outcome"].view(fights, 2)[:, side].cpu()[ended].numpy()
        lengths[where] = out["episode_length"].view(fights, 2)[:, side].cpu()[ended].numpy() * env.decision_s
        active[ended] = False
    return (outcomes, kinds, lengths), umpire


def _put(place: Any, action: Action, rows: torch.Tensor) -> None:
    """Copy an action into some rows of a buffer."""
    if isinstance(action, torch.Tensor):
        place[rows] = action.to(place.dtype)
    else:
        for name, part in action.items():
            place[name][rows] = part.to(place[name].dtype)


def cross_table(
    agents: Sequence[tuple[str, BaseAgent]],
    task: Task,
    cfg: Any,
    fights: int,
    seed: int = TEST_SEED,
    *,
    num_threads: int | None = None,
    deterministic: bool = True,
    highlights: int = 0,
    only_first: bool = False,
    on_match: Callable[[int, int, Match], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Let every agent meet every other one, and itself.

    Args:
        highlights: Of each match between two, how many fights to keep whole.
        only_first: Only of matches of the first agent.
        on_match: Called with numbers of the agents and their match, when it is over.

    Returns:
        "agents": their names; "table"[i][j]: figures of i against j; "elo": {"rating", "ci95", "arena"} of each: the most
        likely rating (mean 1000) with its interval, and a public arena's figure, from the score against all others. Where
        the task has an umpire: "behaviour" of each, in all its fights and in each pair's, and "weak", of each the worst
        opponent and starts (see `CrossTableFigures`).
    """
    check_agents(agents, task, cfg)
    names, judge = [name for name, _ in agents], CrossTableFigures(task.match, len(agents))
    table: list[list[Any]] = [[None] * len(agents) for _ in agents]
    finished = 0
    for i, (_, first) in enumerate(agents):
        for j in range(i, len(agents)):
            match = play(
                first,
                agents[j][1] if i != j else first.clone(),
                task,
                cfg,
                fights,
                seed,
                num_threads=num_threads,
                deterministic=deterministic,
                highlights=highlights if i != j and (i == 0 or not only_first) else 0,
                on_progress=None if on_progress is None else functools.partial(_count_on, on_progress, finished),
            )
            finished += fights
            judge.note(i, j, match)
            table[i][j] = match.as_dict()
            if i != j:
                table[j][i] = match.swapped().as_dict()
                if on_match:
                    on_match(i, j, match)
    result = {"agents": names, "table": table, "elo": ratings(table), "episodes": fights}
    if judge.records:
        for i, j in judge.records:
            table[i][j] |= {"behaviour": judge.pair(i, j), "distinct": judge.records[i, j].distinct()}
        result |= {"behaviour": judge.agents(), "weak": judge.weak(names), "random_starts": list(match.random_starts)}
    return result


def ratings(table: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Elo of everybody in a cross-table."""
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


def _count_on(on_progress: Callable[[int], None], before: int, done: int) -> None:
    on_progress(before + done)
