"""`python -m benchmarks batching`: does `auto` find the fastest sizes? Its choices beside a grid of sizes, in turns.

All ranks of a run take part, as in `fledge train`. First `auto` chooses a few times, each time from new trials (the minibatch
stays as configured at the start of a run). Then the sizes of the grid, and any other size that was chosen, take turns: in
each turn every size runs one whole iteration, with rollouts of full length, timed as in trials (by the CPU time of ranks, if
each has one thread, so that a busy machine does not matter; by the clock too). The baseline is the configured size. Before
that, the state of one size is checked: after its trials a run must have the same random state and weights.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.tables import machine_line, shown, table, three_digits
from benchmarks.turns import ratio, spread
from fledge.core.errors import InputError
from fledge.core.machine import keep_freed_memory, machine_info
from fledge.training.auto import ENVS, MINIBATCH, candidates, choose
from fledge.training.config import TrainConfig, make_config
from fledge.training.factories import env_unit, with_sizes
from fledge.training.meeting import meeting
from fledge.training.memory import check_memory
from fledge.training.ranks import Ranks, default_ranks
from fledge.training.run import TrainingState
from fledge.training.trials import Sizes, run_trials, time_iteration

CLOSE = 0.95  # share of the best speed that a choice must reach


def run(
    task: str = "navigation",
    overrides: Sequence[str] = (),
    envs: Sequence[int] = (64, 256, 1024, 4096),
    minibatches: Sequence[int] = (1024, 4096, 16384),
    turns: int = 5,
    choices: int = 3,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return decisions per second of every size, turn by turn, and how close each choice comes to the best; JSON-able."""
    say = on_progress or (lambda line: None)
    cfg = make_config(task, None, [*overrides, "env.num_envs=auto"])
    size = cfg.ranks or default_ranks(cfg.device, cfg.env.num_envs)
    given = {"task": task, "overrides": list(overrides), "envs": list(envs), "minibatches": list(minibatches)}
    code = f"import json; from benchmarks import batching; batching.run(**json.loads({json.dumps(given)!r}), "
    code += f"turns={turns}, choices={choices})"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `import fledge` sets it for a training
    keep_freed_memory()
    with meeting() as met:
        if met.ranks.is_first:
            met.tell(size, ["-c", code], {})
        else:
            met.hear()
        ranks = met.join(cfg.device, cfg.threads, lambda: None)
        return measure(cfg, ranks, envs, minibatches, turns, choices, say)


def measure(
    cfg: TrainConfig,
    ranks: Ranks,
    envs: Sequence[int],
    minibatches: Sequence[int],
    turns: int,
    choices: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Choose, then time the grid, on every rank; rank 0's figures count."""
    base = TrainingState(cfg, ranks)
    check_trials(base)
    chosen, seconds = list[Sizes](), list[float]()
    for number in range(choices):
        say(f"choice {number + 1} of {choices}")
        begun = time.perf_counter()
        chosen.append(
            ranks.share(choose(run_trials(base, candidates(base, "start")), sizes_of(cfg), cfg.env.num_envs, "start"))
        )
        seconds.append(time.perf_counter() - begun)
    base.close()
    grid: list[Sizes] = [
        {ENVS: n, MINIBATCH: b} for n in envs for b in minibatches if n % env_unit(base.task, cfg, ranks.size) == 0
    ]
    grid += [sizes for sizes in (*chosen, sizes_of(cfg)) if sizes not in grid]
    grid = [
        sizes for k, sizes in enumerate(grid) if grid.index(sizes) == k and sizes[MINIBATCH] <= sizes[ENVS] * cfg.steps
    ]
    biggest = max(grid, key=lambda sizes: sizes[ENVS])
    check_memory(base.task, with_sizes(cfg, {ENVS: len(minibatches) * 2 * biggest[ENVS]}), ranks.size)
    runs = [TrainingState(with_sizes(cfg, sizes), ranks) for sizes in grid]
    speeds, walls = ([list[float]() for _ in grid] for _ in range(2))
    for turn in range(turns + 1):  # the first one warms up
        say(f"turn {turn} of {turns}: {len(grid)} sizes")
        for state, found, wall in zip(runs, speeds, walls, strict=True):
            begun = time.perf_counter()
            found.append(time_iteration(state, 1.0))
            wall.append(state.frames_per_iteration / (time.perf_counter() - begun))
    for state in runs:
        state.close()
    timed = [[found[1:] for found in kind] for kind in (speeds, walls)]
    return summarize(cfg, ranks.size, grid, timed, chosen, seconds)


def sizes_of(cfg: TrainConfig) -> Sizes:
    return {ENVS: cfg.env.num_envs, MINIBATCH: cfg.ppo.minibatch}


def check_trials(base: TrainingState) -> None:
    """Raise InputError if trials change the run."""
    before = (torch.get_rng_state(), {k: v.clone() for k, v in base.policy.state_dict().items()})
    run_trials(base, [sizes_of(base.cfg)], 1)
    same = all(torch.equal(value, base.policy.state_dict()[name]) for name, value in before[1].items())
    if not same or not torch.equal(before[0], torch.get_rng_state()):
        raise InputError("Trials changed the run's weights or its random state, so nothing was measured.")


def summarize(
    cfg: TrainConfig,
    ranks: int,
    grid: list[Sizes],
    timed: list[list[list[float]]],
    chosen: list[Sizes],
    seconds: list[float],
) -> dict[str, Any]:
    """Return the figures of all sizes, and of each choice beside the best of the grid and the best with its minibatch."""
    speeds, walls = timed
    rows: list[dict[str, Any]] = [
        {**sizes, **spread(found, 0), "clock": spread(wall, 0)}
        for sizes, found, wall in zip(grid, speeds, walls, strict=True)
    ]
    by_speed = sorted(range(len(rows)), key=lambda k: -rows[k]["median"])
    best = by_speed[0]
    answers = list[dict[str, Any]]()
    for sizes, took in zip(chosen, seconds, strict=True):
        own = grid.index(sizes)
        rival = next(k for k in by_speed if grid[k][MINIBATCH] == sizes[MINIBATCH])
        answers.append(
            {
                **sizes,
                "seconds": round(took, 2),
                "of_best": ratio(speeds[own], speeds[best]),
                "of_best_with_this_minibatch": ratio(speeds[own], speeds[rival]),
            }
        )
    configured = grid.index(sizes_of(cfg))
    return {
        "machine": machine_info(),
        "task": cfg.task,
        "ranks": ranks,
        "rollout_steps": cfg.steps,
        "sizes": rows,
        "best": grid[best],
        "configured": {**grid[configured], "of_best": ratio(speeds[configured], speeds[best])},
        "choices": answers,
        "close": all(answer["of_best"]["median"] >= CLOSE for answer in answers),
    }


def render(result: dict[str, Any]) -> list[Any]:
    """Return the result as rich renderables."""
    sizes = table(
        f"{result['task']}, {result['ranks']} ranks: whole iterations", "envs, minibatch", "decisions/s", "of best"
    )
    top = max(row["median"] for row in result["sizes"])
    for row in result["sizes"]:
        own = f"{row['median'] / top:.1%}"
        sizes.add_row(f"{row[ENVS]:,}, {row[MINIBATCH]:,}", shown(row), own, three_digits(row["clock"]["median"]))
    answers = table("auto", "chose envs, minibatch", "of best", "of best, same minibatch", "s to choose")
    for row in result["choices"]:
        same = shown(row["of_best_with_this_minibatch"])
        answers.add_row(f"{row[ENVS]:,}, {row[MINIBATCH]:,}", shown(row["of_best"]), same, f"{row['seconds']:.1f}")
    usual = result["configured"]
    answers.add_row(f"as configured: {usual[ENVS]:,}, {usual[MINIBATCH]:,}", shown(usual["of_best"]), "", "")
    end = f"Every choice reaches {CLOSE:.0%} of the best: {'yes' if result['close'] else 'no'}."
    return [machine_line(result["machine"], "end"), sizes, answers, end]
