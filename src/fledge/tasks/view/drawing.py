"""Default pictures of recorded episodes, for tasks that do not draw their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fledge.tasks.view.trajectory import Trajectory

COLOURS = ("#1b9e5a", "#d1495b", "#4a6fa5", "#e08e1b", "#6b4fa0", "#526070")


def draw_trajectories(tracks: Sequence[Trajectory], title: str = "") -> Any:
    """Draw paths from above and from the side if all tracks have positions, else up to four recorded entries over time."""
    from matplotlib.figure import Figure

    outcomes = list(dict.fromkeys(track.outcome for track in tracks))
    colour = {name: COLOURS[k % len(COLOURS)] for k, name in enumerate(outcomes)}
    figure = Figure(figsize=(11, 5), dpi=100, layout="constrained")
    if all("pos" in track.frames for track in tracks):
        views = [("x, m", "y, m", 0, 1), ("x, m", "z, m", 0, 2)]
        views = views if all(track.frames["pos"].shape[-1] > 2 for track in tracks) else views[:1]
        for axes, (across, up, i, j) in zip(np.atleast_1d(figure.subplots(1, len(views))), views, strict=True):
            for track in tracks:
                path = track.frames["pos"]
                axes.plot(path[:, i], path[:, j], color=colour[track.outcome], linewidth=1, alpha=0.8)
                axes.plot(path[-1, i], path[-1, j], "o", color=colour[track.outcome], markersize=3)
            axes.set(xlabel=across, ylabel=up, aspect="equal")
            axes.grid(alpha=0.25)
    else:
        names = sorted({name for track in tracks for name in track.frames})[:4]
        for axes, name in zip(np.atleast_1d(figure.subplots(1, max(1, len(names)))), names, strict=False):
            for track in tracks:
                values = track.frames[name].reshape(len(track.frames[name]), -1)
                axes.plot(values[:, :4], color=colour[track.outcome], linewidth=0.8, alpha=0.6)
            axes.set(xlabel="decision", title=name.replace("_", " "))
            axes.grid(alpha=0.25)
    for name in outcomes:
        figure.axes[0].plot([], [], color=colour[name], label=name.replace("_", " "))
    figure.axes[0].legend(fontsize=8)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure
