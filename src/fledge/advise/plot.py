"""The advice as a picture: phases, ways to collect, sizes by level, overhead by interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fledge.advise.decide import save_cost_s

COLOURS = ("#334e68", "#4a6fa5", "#1b9e5a", "#e08e1b", "#d1495b")


def figure(result: Mapping[str, Any]) -> Any:
    """A matplotlib figure of what `advise` found."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11, 7), dpi=100, layout="constrained")
    axes = drawn.subplots(2, 2)
    _phases(axes[0, 0], result["measured"])
    _modes(axes[0, 1], result)
    _sizes(axes[1, 0], result)
    _overhead(axes[1, 1], result)
    for ax in axes.flat:
        ax.tick_params(labelsize=8)
        ax.title.set_fontsize(10)
    drawn.suptitle(f"fledge advise: {result['measured']['machine']['cores']} cores, budget {result['budget']:.1%}")
    return drawn


def save_plot(result: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of what `advise` found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure(result).savefig(path)


def _phases(ax: Any, measured: Mapping[str, Any]) -> None:
    left = 0.0
    for colour, name in zip(COLOURS, ("simulate_s", "decide_s", "learn_s"), strict=False):
        seconds = measured["phases"][name]
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


def _level(config: Mapping[str, Any]) -> str:
    return f"level {config['save_compression_level']}" if config["compress_checkpoint"] else "level 0"


def _sizes(ax: Any, result: Mapping[str, Any]) -> None:
    found = result["measured"]["checkpoint"]
    sizes = {"torch.save": found["torch_save_bytes"]} | {n: row["bytes"] for n, row in found["levels"].items()}
    colours = _marked(sizes, _level(result["config"]))
    ax.barh(list(sizes), np.array(list(sizes.values())) / 1e6, color=colours)
    ax.invert_yaxis()
    ax.set_title("checkpoint, MB (green: advised)")


def _overhead(ax: Any, result: Mapping[str, Any]) -> None:
    """Share of the time that saving costs, over iterations between saves."""
    config, measured = result["config"], result["measured"]
    intervals = np.geomspace(1, max(200, 2 * config["save_interval"]), 50)
    iteration = measured["modes"][result["way"]]["iteration_s"]
    archive = min(row["call_s"] + row["cpu_s"] for row in measured["archive"]["levels"].values())
    ax.loglog(
        intervals,
        100 * save_cost_s(measured, _level(config)) / (intervals * iteration),
        color=COLOURS[3],
        label="checkpoint",
    )
    ax.loglog(intervals, 100 * archive / (intervals * iteration), color=COLOURS[4], label="rollout archive")
    ax.axhline(100 * result["budget"], color="#888", linestyle="--", linewidth=1, label="budget")
    ax.axvline(config["save_interval"], color="#888", linestyle=":", linewidth=1, label="advised for checkpoints")
    ax.set_xlabel("iterations between saves", fontsize=8)
    ax.legend(fontsize=8)
    ax.set_title("cost of saving, % of the time")
