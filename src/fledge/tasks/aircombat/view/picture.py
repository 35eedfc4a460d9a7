"""Pictures of fights from above, in kilometres; and of one fight with the ranges of each side's missile over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.recorded import config_of, distances, shot_ranges
from fledge.tasks.aircombat.view.loss_reason import DEAD
from fledge.tasks.view.trajectory import Trajectory

SIDES = ("#2f6db3", "#c8433f")
NAMES = ("blue", "red")
TINTS = ("#df8676", "#f1bda6", "#fbe8c6")  # inside R_ne, R_tr, R_max
REACHES = (
    "inside R_ne: no escape",
    "inside R_tr: turning away does not help",
    "inside R_max: keeping course does not help",
)
TICK_S = 20.0
OUTCOMES = {"win": "blue wins", "loss": "red wins", "draw": "both die"}
OUTCOMES |= {"spent": "no missiles left", "timeout": "time is up"}


def draw_fight(axes: Any, track: Trajectory) -> None:
    """Draw one fight. Blue is the side that `track.outcome` refers to."""
    pos, time = track.frames["pos"] / 1000.0, track.frames["time_s"]
    flying, missiles = track.frames["missile_alive"].astype(bool), track.frames["missile_pos"] / 1000.0
    ticks = [int(np.argmin(np.abs(time - t))) for t in np.arange(0.0, time[-1] + 1e-3, TICK_S)]
    for side, colour in enumerate(SIDES):
        path = pos[:, side]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.6)
        axes.plot(path[ticks, 0], path[ticks, 1], ".", color=colour, markersize=5)
        axes.plot(path[0, 0], path[0, 1], "o", color=colour, markersize=6, markerfacecolor="white")
        for slot in np.flatnonzero(flying[:, side].any(axis=0)):
            way = missiles[flying[:, side, slot], side, slot]
            axes.plot(way[:, 0], way[:, 1], color=colour, linewidth=0.9, linestyle=(0, (3, 1.5)), alpha=0.8)
            axes.plot(way[0, 0], way[0, 1], "^", color=colour, markersize=4)
        if track.outcome in DEAD[side]:
            axes.plot(path[-1, 0], path[-1, 1], "X", color="#222", markersize=9, markeredgecolor="white")
    axes.set(xlabel="east, km", ylabel="north, km")
    axes.set_aspect("equal", adjustable="datalim")
    kind = track.scene.get("scenario", "fight").replace("_", " ")
    axes.set_title(f"{kind}: {OUTCOMES[track.outcome]}, {time[-1]:.0f} s", fontsize=10)
    axes.grid(alpha=0.25)
    axes.margins(0.08)


def fights_figure(tracks: Sequence[Trajectory], title: str = "", shown: int = 6) -> Any:
    """Return a figure of up to `shown` fights, chosen to show all outcomes that occur."""
    by_ending: dict[str, list[Trajectory]] = {}
    for track in tracks:
        by_ending.setdefault(track.outcome, []).append(track)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_ending.values()))
    chosen = [track for track in turns if track is not None][:shown]
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(4.6 * columns, 4.2 * rows + 0.9), dpi=100, layout="constrained")
    for number, track in enumerate(chosen):
        draw_fight(figure.add_subplot(rows, columns, number + 1), track)
    entries = [Line2D([], [], color=colour, label=name) for colour, name in zip(SIDES, NAMES, strict=True)]
    signs = [("o", "start"), (".", f"every {TICK_S:.0f} s"), ("^", "missile fired"), ("X", "killed")]
    entries += [Line2D([], [], color="#222", marker=m, linestyle="", markersize=7, label=t) for m, t in signs]
    entries.append(Line2D([], [], color="#222", linestyle=(0, (3, 1.5)), label="missile's path"))
    return finish(figure, entries, title)


def finish(figure: Figure, entries: Sequence[Any], title: str) -> Figure:
    """Add a legend with these entries and the title to a figure, and return the figure."""
    figure.legend(handles=entries, loc="outside lower center", ncols=7, fontsize=9, frameon=False)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


def fight_figure(track: Trajectory, title: str = "") -> Any:
    """Return a figure of one fight: from above, and for each side the ranges of its missile over time."""
    figure = Figure(figsize=(12.6, 4.9), dpi=100)
    figure.set_layout_engine("constrained", w_pad=0.1)
    above, *graphs = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    draw_fight(above, track)
    with Envelope(config_of(track.scene)) as envelope:
        reach = shot_ranges(track.frames, envelope) / 1000.0
    for side, axes in enumerate(graphs):
        draw_reach(axes, track, side, reach[:, side])
    graphs[1].set_ylabel("")
    entries: list[Any] = [Patch(color=tint, label=text) for tint, text in zip(TINTS, REACHES, strict=True)]
    entries += [
        Line2D([], [], color="#111", linewidth=2.2, label="range"),
        Line2D([], [], color="#111", linestyle=(0, (3, 1.5)), label="missile to its target"),
        Line2D([], [], color="#111", marker="^", linestyle="", label="fired"),
        Line2D([], [], color="#222", marker="X", linestyle="", markersize=8, label="killed"),
    ]
    return finish(figure, entries, title)


def draw_reach(axes: Any, track: Trajectory, side: int, reach: np.ndarray) -> None:
    """Draw over time R_max, R_tr and R_ne of one side (`reach`, [T, 3] km), the distance between the sides, and missiles."""
    frames, enemy = track.frames, 1 - side
    time, away = frames["time_s"], distances(frames) / 1000.0
    inner = np.zeros(len(time))
    for tint, outer in zip(TINTS, reach.T[::-1], strict=True):  # R_ne, R_tr, R_max
        axes.fill_betweenx(time, inner, np.maximum(outer, inner), color=tint, linewidth=0)
        inner = np.maximum(outer, inner)
    axes.plot(away, time, color="#111", linewidth=2.2)
    gap = np.linalg.norm(frames["missile_pos"][:, side] - frames["pos"][:, None, enemy], axis=-1) / 1000.0  # [T, S]
    flying = frames["missile_alive"][:, side].astype(bool)
    for slot in np.flatnonzero(flying.any(axis=0)):
        steps = np.flatnonzero(flying[:, slot])
        axes.plot(gap[steps, slot], time[steps], color=SIDES[side], linewidth=1.3, linestyle=(0, (3, 1.5)))
        if (fired := steps[0] - 1) >= 0:
            axes.plot(away[fired], time[fired], "^", color=SIDES[side], markersize=8, markeredgecolor="white")
    if track.outcome in DEAD[enemy]:
        axes.plot(0.0, time[-1], "X", color="#222", markersize=10, markeredgecolor="white", clip_on=False, zorder=5)
    axes.set(xlim=(0.0, 1.12 * float(away.max())), ylim=(0.0, max(float(time[-1]), 1.0) * 1.02))
    axes.set(xlabel="km from the enemy", ylabel="time, s")
    axes.set_title(f"{NAMES[side]}'s missile could kill {NAMES[enemy]} ...", fontsize=10, color=SIDES[side])
    axes.grid(alpha=0.25)
