"""Pictures of fights: both sides and their missiles from above, in kilometres, with time along the paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fledge.tasks.base import Track

SIDES = ("#2f6db3", "#c8433f")
TICK_S = 20.0
WORDS = {
    "win": "blue wins",
    "loss": "red wins",
    "draw": "both die",
    "spent": "no missiles left",
    "timeout": "time is up",
}


def draw_fight(axes: Any, track: Track) -> None:
    """One fight into matplotlib axes. Blue is the side whose outcome it is."""
    pos, time = track.frames["pos"] / 1000.0, track.frames["time_s"]
    flying, missiles = track.frames["missile_alive"], track.frames["missile_pos"] / 1000.0
    ticks = [int(np.argmin(np.abs(time - t))) for t in np.arange(0.0, time[-1] + 1e-3, TICK_S)]
    for side, colour in enumerate(SIDES):
        path = pos[:, side]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.6)
        axes.plot(path[ticks, 0], path[ticks, 1], ".", color=colour, markersize=5)
        axes.plot(path[0, 0], path[0, 1], "o", color=colour, markersize=6, markerfacecolor="white")
        for slot in range(flying.shape[2]):
            steps = np.flatnonzero(flying[:, side, slot])
            if len(steps):
                way = missiles[steps, side, slot]
                axes.plot(way[:, 0], way[:, 1], color=colour, linewidth=0.9, linestyle=(0, (3, 1.5)), alpha=0.8)
                axes.plot(way[0, 0], way[0, 1], "^", color=colour, markersize=4)
        lost = {"win": 1, "loss": 0}.get(track.outcome)
        if lost == side or track.outcome == "draw":
            axes.plot(path[-1, 0], path[-1, 1], "X", color="#222", markersize=9, markeredgecolor="white")
    axes.set(xlabel="east, km", ylabel="north, km")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(
        f"{track.scene.get('scenario', 'fight').replace('_', ' ')}: {WORDS[track.outcome]}, {time[-1]:.0f} s",
        fontsize=10,
    )
    axes.grid(alpha=0.25)
    axes.margins(0.08)


def fights_figure(tracks: Sequence[Track], title: str = "", shown: int = 6) -> Any:
    """A matplotlib figure of some fights: as many kinds of endings as there are."""
    by_ending: dict[str, list[Track]] = {}
    for track in tracks:
        by_ending.setdefault(track.outcome, []).append(track)
    chosen: list[Track] = []
    while len(chosen) < min(shown, len(tracks)):
        for fights in by_ending.values():
            if fights and len(chosen) < shown:
                chosen.append(fights.pop(0))
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(4.6 * columns, 4.2 * rows + 0.9), dpi=100, layout="constrained")
    for number, track in enumerate(chosen):
        draw_fight(figure.add_subplot(rows, columns, number + 1), track)
    entries = [Line2D([], [], color=colour, label=name) for colour, name in zip(SIDES, ("blue", "red"), strict=True)]
    signs = [("o", "start"), (".", f"every {TICK_S:.0f} s"), ("^", "missile fired"), ("X", "killed")]
    entries += [Line2D([], [], color="#222", marker=m, linestyle="", markersize=7, label=t) for m, t in signs]
    entries.append(Line2D([], [], color="#222", linestyle=(0, (3, 1.5)), label="missile's way"))
    figure.legend(handles=entries, loc="outside lower center", ncols=7, fontsize=9, frameon=False)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure
