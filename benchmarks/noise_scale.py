"""`python -m benchmarks noise-scale`: learning curves with a minibatch that grows with the gradient noise scale.

A small training is repeated with fixed minibatches and with ppo.minibatch=auto, for several seeds, on one rank and one
core. Metrics of training are compared over decisions and over the CPU time of the process, which other programs on the machine
hardly change. First it is checked that measuring the noise scale changes no weight.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tables import machine_line, shown, table
from benchmarks.turns import spread
from fledge.core.errors import InputError
from fledge.core.machine import machine_info
from fledge.learn.ppo import PPO
from fledge.training.auto import AutoSizes
from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

LAST = 0.1  # share of the decisions at the end over which the final metric is taken
TURNS = 12


def run(
    task: str = "navigation",
    overrides: Sequence[str] = (),
    fixed: Sequence[int] = (256, 1024, 4096),
    grow: Sequence[int] = (256, 1024),
    seeds: int = 3,
    picture: str | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return learning curves and final metrics of all variants, and the cost of measuring; JSON-able."""
    say = on_progress or (lambda line: None)
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(cores)})
    try:
        cost = measure_cost(task, [*overrides, f"ppo.minibatch={fixed[len(fixed) // 2]}"])
        rows: list[dict[str, Any]] = []
        for seed in range(seeds):
            for variant in (*map(str, fixed), *(f"auto from {size}" for size in grow)):
                say(f"seed {seed + 1} of {seeds}: minibatch {variant}")
                rows.append(train(task, [*overrides, f"seed={seed + 1}"], variant))
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)
    result = {"machine": machine_info(), "task": task, "overrides": list(overrides), "cost": cost, "runs": rows}
    result["metric"] = make_run(task, list(overrides)).task.primary_metric
    if picture:
        draw(result, Path(picture))
    return result


def make_run(task: str, words: Sequence[str]) -> TrainingState:
    return TrainingState(make_config(task, None, [*words, "ranks=1"]), Ranks())


def measure_cost(task: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the CPU seconds of updates with and without measuring the noise scale on one rank, in turns.

    Raises:
        InputError: Measuring changed a weight.
    """
    state = make_run(task, words)
    learner = state.learner
    assert isinstance(learner, PPO)
    rollout, before = state.collect(), learner.snapshot()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    weights: dict[bool, torch.Tensor] = {}
    for turn in range(TURNS + 1):  # the first one warms up
        for splits, found in seconds.items():
            learner.splits = splits
            begun = time.process_time()
            learner.update(rollout, 0.0)
            found += [time.process_time() - begun] if turn else []
            weights[splits] = learner.flat.values.detach().clone()
            learner.restore(before)
    state.close()
    if not torch.equal(weights[False], weights[True]):
        raise InputError("Measuring the noise scale changed weights, so nothing was trained.")
    return spread([b / a for a, b in zip(seconds[False], seconds[True], strict=True)])


def train(task: str, words: Sequence[str], variant: str) -> dict[str, Any]:
    """Train one variant; return its curves, one value for each iteration."""
    size = variant.removeprefix("auto from ")
    state = make_run(task, [*words, f"ppo.minibatch={size}", *(["auto=[ppo.minibatch]"] if size != variant else [])])
    metric, curves = (
        state.task.primary_metric,
        {k: list[float]() for k in ("frames", "cpu_s", "value", "minibatch", "noise")},
    )
    with tempfile.TemporaryDirectory() as folder:
        sizes = AutoSizes(state, Path(folder), lambda text: None) if state.cfg.auto else None
        spent = 0.0
        while not state.finished:
            begun = time.process_time()
            if sizes:
                sizes.border()
            rollout = state.collect()
            losses = state.learn(rollout)
            spent += time.process_time() - begun
            state.seconds = spent
            found = state.episode_metrics(rollout)
            values = (
                state.frames,
                spent,
                found[metric] if found["episodes"] else float("nan"),
                state.cfg.ppo.minibatch,
            )
            for curve, value in zip(curves.values(), (*values, losses.get("ppo/noise_scale", 0.0)), strict=True):
                curve.append(value)
    state.close()
    late = [v for f, v in zip(curves["frames"], curves["value"], strict=True) if f > (1 - LAST) * curves["frames"][-1]]
    return {
        "variant": variant,
        "seed": state.cfg.seed,
        **curves,
        "final": float(np.nanmean(late)),
        "cpu_total_s": spent,
    }


def render(result: dict[str, Any]) -> list[Any]:
    """Return the result as rich renderables."""
    made = table(
        f"{result['task']}: {result['metric']} in training", "minibatch", "at the end", "CPU s", "last minibatch"
    )
    for variant in dict.fromkeys(row["variant"] for row in result["runs"]):
        rows = [row for row in result["runs"] if row["variant"] == variant]
        last = ", ".join(f"{row['minibatch'][-1]:,}" for row in rows)
        made.add_row(
            variant, shown(spread([r["final"] for r in rows])), shown(spread([r["cpu_total_s"] for r in rows])), last
        )
    cost = f"An update that measures the noise scale on one rank takes {shown(result['cost'])} times the CPU time."
    return [machine_line(result["machine"], "end"), made, cost]


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the metric over decisions and CPU minutes, and the minibatch and noise scale over decisions, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), dpi=100, layout="constrained")
    axes: Any = figure.subplots(1, 3)
    for number, variant in enumerate(dict.fromkeys(row["variant"] for row in result["runs"])):
        rows = [row for row in result["runs"] if row["variant"] == variant]
        style = {"color": f"C{number}", "linestyle": "-" if variant.startswith("auto") else "--"}
        for row in rows:
            row_label = f"{variant}" if row is rows[0] else None
            smooth = smoothed(row["value"])
            axes[0].plot(np.array(row["frames"]) / 1e6, smooth, label=row_label, linewidth=1.2, **style)
            axes[1].plot(np.array(row["cpu_s"]) / 60, smooth, linewidth=1.2, **style)
            axes[2].plot(np.array(row["frames"]) / 1e6, row["minibatch"], linewidth=1.2, **style)
            if any(row["noise"]):
                axes[2].plot(
                    np.array(row["frames"]) / 1e6, row["noise"], color=style["color"], linewidth=0.6, alpha=0.6
                )
    for axis, x, y in zip(
        axes,
        ("million decisions", "CPU minutes", "million decisions"),
        (result["metric"],) * 2 + ("samples",),
        strict=True,
    ):
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.grid(alpha=0.3)
    axes[2].set_yscale("log")
    axes[2].set_ylim(top=1e6)
    axes[2].set_title("minibatch (thick), noise scale (thin)", fontsize=10)
    axes[0].legend(title="ppo.minibatch", fontsize=8, title_fontsize=8)
    figure.suptitle(f"{result['task']}: {' '.join(result['overrides'])}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def smoothed(values: Sequence[float], width: int = 5) -> np.ndarray:
    """Return the running mean of the last `width` values, without NaN."""
    return np.array(
        [np.nanmean([*values[max(0, k + 1 - width) : k + 1], np.nan]) if k else values[0] for k in range(len(values))]
    )
