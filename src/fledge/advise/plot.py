"""The advice as a picture: phases, ways to collect, sizes by level, overhead by interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fledge.advise.decide import checkpoint_level, save_cost_s

COLOURS = ("#334e68", "#4a6fa5", "#1b9e5a", "#e08e1b", "#d1495b")


def figure(result: Mapping[str, Any]) -> Any:
    """Draw the result of `advise` as a matplotlib figure."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11, 7), dpi=100, layout="constrained")
    axes = drawn.subplots(2, 2)
    for ax, draw in zip(axes.flat, (_phases, _modes, _sizes, _overhead), strict=True):
        draw(ax, result)
        ax.tick_params(labelsize=8)
        ax.title.set_fontsize(10)
    drawn.suptitle(f"fledge advise: {result['measured']['machine']['cores']} cores, budget {result['budget']:.1%}")
    return drawn


def save_plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the figure of the result of `advise` as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure(result).savefig(path)


def _phases(ax: Any, result: Mapping[str, Any]) -> None:
    left = 0.0
    for colour, name in zip(COLOURS, ("simulate_s", "decide_s", "learn_s"), strict=False):
        seconds = result["measured"]["phases"][name]
        ax.barh(0, seconds, left=left, color=colour, label=f"{name.removesuffix('_s')} {1e3 * seconds:.0f} ms")
        left += seconds
    ax.set_yticks([])
    ax.set_ylim(-1, 1.6)
    ax.set_xlabel("seconds", fontsize=8)
    ax.legend(fontsize=8, ncols=3, loc="upper center", frameon=False)
    ax.set_title("an iteration")


def _modes(ax: Any, result: Mapping[str, Any]) -> None:
    modes = result["measured"]["modes"]
    names, rows = list(modes), list(modes.values())
    speed = np.array([row["frames_per_second"] for row in rows]) / 1e3
    spread = np.abs(np.array([[row["p10"], row["p90"]] for row in rows]).T / 1e3 - speed)
    ax.barh(names, speed, xerr=spread, color=_marked(names, result["way"]), error_kw={"linewidth": 1})
    ax.invert_yaxis()
    ax.set_title("thousand decisions per second, p10 to p90 (green: advised)")


def _marked(names: Iterable[str], advised: str) -> list[str]:
    return [COLOURS[2] if name == advised else COLOURS[1] for name in names]


def _sizes(ax: Any, result: Mapping[str, Any]) -> None:
    found = result["measured"]["checkpoint"]
    sizes = {"torch.save": found["torch_save_bytes"]} | {n: row["bytes"] for n, row in found["levels"].items()}
    colours = _marked(sizes, checkpoint_level(result["config"]))
    ax.barh(list(sizes), np.array(list(sizes.values())) / 1e6, color=colours)
    ax.invert_yaxis()
    ax.set_title("checkpoint, MB (green: advised)")


def _overhead(ax: Any, result: Mapping[str, Any]) -> None:
    """Draw the share of the time that saving costs, by iterations between saves."""
    config, measured = result["config"], result["measured"]
    intervals = np.geomspace(1, max(200, 2 * config["save_interval"]), 50)
    iteration = measured["modes"][result["way"]]["iteration_s"]
    archive = min(row["call_s"] + row["cpu_s"] for row in measured["archive"]["levels"].values())
    checkpoint = save_cost_s(measured, checkpoint_level(config))
    for cost, colour, name in ((checkpoint, COLOURS[3], "checkpoint"), (archive, COLOURS[4], "rollout archive")):
        ax.loglog(intervals, 100 * cost / (intervals * iteration), color=colour, label=name)
    ax.axhline(100 * result["budget"], color="#888", linestyle="--", linewidth=1, label="budget")
    ax.axvline(config["save_interval"], color="#888", linestyle=":", linewidth=1, label="advised for checkpoints")
    ax.set_xlabel("iterations between saves", fontsize=8)
    ax.legend(fontsize=8)
    ax.set_title("cost of saving, % of the time")
