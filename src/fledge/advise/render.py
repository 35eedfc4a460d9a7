"""Print the advice on a terminal (decision tree with measured values, tables, settings to use), and draw it as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from fledge.advise.decide import SCHEMES, checkpoint_level, save_cost_s

COLOURS = ("#334e68", "#4a6fa5", "#1b9e5a", "#e08e1b", "#d1495b")
BUSY = 0.5  # load at the start above which speeds are rough


def render(result: Mapping[str, Any]) -> list[RenderableType]:
    """Return the result of `advise` as rich renderables."""
    measured = result["measured"]
    machine, settings = measured["machine"], measured["settings"]
    title = (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']} at the start · "
        f"{settings['num_envs']} drones, {settings['ranks']} ranks, rollouts of {settings['rollout_steps']} steps"
    )
    if (machine["load_average"] or 0) > BUSY:
        title += "\nOther processes are running on this machine, so speeds are rough. Measure again when it is idle."
    scheme = f"{result['scheme']} ({SCHEMES[result['scheme']]})"
    lines = Text.assemble(("Scheme for rollouts: ", "bold"), scheme)
    return [title, _tree(result), _speeds(measured), _checkpoints(measured), _storage(measured), lines]


def settings_line(result: Mapping[str, Any]) -> Text:
    """Return the advised settings as arguments of `fledge train`, on one line so that they can be copied."""
    return Text.assemble(("Set: ", "bold"), " ".join(f"{key}={value}" for key, value in result["config"].items()))


def _tree(result: Mapping[str, Any]) -> Tree:
    phases = dict(result["measured"]["phases"])
    whole = phases.pop("iteration_s")
    parts = ", ".join(f"{name.removesuffix('_s')} {seconds / whole:.0%}" for name, seconds in phases.items())
    tree = Tree(f"An iteration takes {whole:.2f} s: {parts}")
    for branch in result["branches"]:
        node = tree.add(Text(branch["question"], "bold"))
        node.add(Text(branch["because"]))
        for label, taken, text in (("yes", branch["yes"], "then"), ("no", not branch["yes"], "otherwise")):
            node.add(Text(f"→ {label}: {branch[text]}", "green") if taken else Text(label, "dim"))
    return tree


def _table(title: str, *columns: str) -> Table:
    return Table("", *(Column(name, justify="right") for name in columns), title=title, title_justify="left")


def _mb(size: float, digits: int = 1) -> str:
    return f"{size / 1e6:.{digits}f}"


def _speeds(measured: Mapping[str, Any]) -> Table:
    modes = measured["modes"]
    plain = next(row["frames_per_second"] for row in modes.values() if row["mode"] == "sync")
    table = _table("Ways to collect", "decisions/s", "p10 to p90", "beside the first")
    for name, row in modes.items():
        spread = f"{row['p10']:,.0f} to {row['p90']:,.0f}"
        table.add_row(name, f"{row['frames_per_second']:,.0f}", spread, f"{row['frames_per_second'] / plain - 1:+.1%}")
    return table


def _checkpoints(measured: Mapping[str, Any]) -> Table:
    found = measured["checkpoint"]
    plain = found["torch_save_bytes"]
    waits = " + ".join(f"{1e3 * found[key]:.2f}" for key in ("gather_s", "call_s", "fence_s"))
    title = f"Checkpoints: training waits {waits} ms (state, call, fence) per save"
    table = _table(title, "MB", "of torch.save", "CPU ms", "durable after, ms")
    table.add_row("torch.save + fsync, waited for", _mb(plain, 2), "100%", "", f"{1e3 * found['torch_save_s']:.0f}")
    for name, row in found["levels"].items():
        times = (f"{1e3 * row[key]:.0f}" for key in ("cpu_s", "durable_s"))
        table.add_row(name, _mb(row["bytes"], 2), f"{row['bytes'] / plain:.1%}", *times)
    return table


def _storage(measured: Mapping[str, Any]) -> Table:
    archive, packed, sent, decoding = (measured[key] for key in ("archive", "packed", "stream", "decoding"))
    table = _table("Rollouts of one rank", "MB", "of raw", "seconds")
    raw, lidar = archive["raw_bytes"], packed["raw_bytes"]
    table.add_row("B: as it is", _mb(raw), "100%", "")
    table.add_row("B: LZ4-9", _mb(archive["lz4_bytes"]), f"{archive['lz4_bytes'] / raw:.1%}", "")
    for name, row in archive["levels"].items():
        cost = f"{row['call_s']:.2f} waiting, {row['cpu_s']:.2f} CPU"
        table.add_row(f"B: archive, {name}", _mb(row["bytes"]), f"{row['bytes'] / raw:.1%}", cost)
    share, cost = f"{packed['bytes'] / lidar:.1%} of {_mb(lidar)}", f"{packed['decode_s']:.2f} to decode"
    table.add_row("C: LiDAR in memory", _mb(packed["bytes"]), share, f"{packed['pack_s']:.2f} to pack, {cost}")
    share, limit = f"{sent['bytes'] / sent['raw_bytes']:.1%}", f"{sent['break_even_bytes_per_s'] / 1e6:,.0f} MB/s"
    cost = f"{sent['pack_s']:.2f} to pack, {sent['unpack_s']:.2f} to restore"
    table.add_row("sent to another machine", _mb(sent["bytes"]), f"{share}; pays below {limit}", cost)
    name = f"LZ4 decoding, {decoding['threads']} threads on {decoding['cores']} cores"
    speedup = f"{decoding['one_s'] / decoding['pool_s']:.2f}x the speed"
    table.add_row(name, "", speedup, f"{decoding['pool_s']:.3f}")
    return table


# ---- picture ---------------------------------------------------------------------------------------------------------


def save_plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the result of `advise` and write it as a PNG."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11, 7), dpi=100, layout="constrained")
    axes = drawn.subplots(2, 2)
    for ax, draw in zip(axes.flat, (_draw_phases, _draw_modes, _draw_sizes, _draw_overhead), strict=True):
        draw(ax, result)
        ax.tick_params(labelsize=8)
        ax.title.set_fontsize(10)
    drawn.suptitle(f"fledge advise: {result['measured']['machine']['cores']} cores, budget {result['budget']:.1%}")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)


def _draw_phases(ax: Any, result: Mapping[str, Any]) -> None:
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


def _draw_modes(ax: Any, result: Mapping[str, Any]) -> None:
    modes = result["measured"]["modes"]
    names, rows = list(modes), list(modes.values())
    speed = np.array([row["frames_per_second"] for row in rows]) / 1e3
    spread = np.abs(np.array([[row["p10"], row["p90"]] for row in rows]).T / 1e3 - speed)
    ax.barh(names, speed, xerr=spread, color=_marked(names, result["way"]), error_kw={"linewidth": 1})
    ax.invert_yaxis()
    ax.set_title("thousand decisions per second, p10 to p90 (green: advised)")


def _marked(names: Iterable[str], advised: str) -> list[str]:
    return [COLOURS[2] if name == advised else COLOURS[1] for name in names]


def _draw_sizes(ax: Any, result: Mapping[str, Any]) -> None:
    found = result["measured"]["checkpoint"]
    sizes = {"torch.save": found["torch_save_bytes"]} | {n: row["bytes"] for n, row in found["levels"].items()}
    colours = _marked(sizes, checkpoint_level(result["config"]))
    ax.barh(list(sizes), np.array(list(sizes.values())) / 1e6, color=colours)
    ax.invert_yaxis()
    ax.set_title("checkpoint, MB (green: advised)")


def _draw_overhead(ax: Any, result: Mapping[str, Any]) -> None:
    """Draw the share of training time that saving costs, over the number of iterations between saves."""
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
