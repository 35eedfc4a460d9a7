"""Draw the league of a run: the learner's rating over time, when opponents joined, and their ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import FledgeError
from fledge.storage import CheckpointHistory

LEARNER, PILOT, SELF = "#1b9e5a", "#b0330f", "#2f6db3"
LABEL_GAP = 0.048  # least distance between the names at the right, as a share of the height
Row = Mapping[str, Any]


def read_league(run: Path) -> dict[str, Any]:
    """Return the league's state in the run's newest checkpoint that has one; empty if none has."""
    history = CheckpointHistory(run / "checkpoints")
    for entry in reversed(history.entries()):
        try:
            state = history.load(entry, keys=("curriculum",)).get("curriculum")
        except (FledgeError, KeyError):
            continue  # holds only weights
        if state and "names" in state:
            return dict(state)
    return {}


def members(league: Mapping[str, Any], curves: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a dict for each opponent, in the order in which they joined the league.

    Keys: `name`; `self`, whether it is a past version of the learner; `frames` and `joined_at`, the decisions and the rating
    when it joined; and its `rating`, `fights` and recent `score` now.
    """
    frames = np.array([row["frames"] for row in curves], float)
    fights = np.array([row.get("league/fights", np.nan) for row in curves], float)
    elo = np.array([row.get("league/elo", np.nan) for row in curves], float)
    noted = {int(number): when for number, when in league.get("joined", {}).items()}
    joined, known = noted or joined_by_metrics(league, curves), np.isfinite(fights)
    pilots = league.get("pilots", len(league["names"]) - len(league["selves"]))
    found = []
    for number in sorted(joined, key=lambda n: (joined[n].get("fights", 0.0), n)):
        when = joined[number]
        at = when.get("frames")
        if at is None:
            at = float(np.interp(when["fights"], np.r_[0.0, fights[known]], np.r_[0.0, frames[known]]))
        won, drawn, lost = (float(x) for x in league["totals"][number])
        found.append(
            {
                "name": league["names"][number],
                "self": number >= pilots,
                "frames": at,
                "joined_at": float(when.get("rating", np.interp(at, frames, elo))),
                "rating": float(league["ratings"][number + 1]),
                "fights": float(league["met"][number]),
                "score": (won + 0.5 * drawn) / max(won + drawn + lost, 1e-9),
            }
        )
    return found


def joined_by_metrics(league: Mapping[str, Any], curves: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Estimate from the run's metrics after how many decisions each opponent joined.

    Return number of the opponent -> {"frames": decisions, "fights": the same}. Needed if the league's state does not say it.
    """
    selves = sorted(int(number) for number in league["selves"])
    joined: dict[int, dict[str, float]] = {0: {"frames": 0.0, "fights": 0.0}}
    for row in curves:
        rung = int(row.get("league/rung", 1))
        known = len([number for number in joined if number in selves])
        copies = int(row.get("league/opponents", rung)) - rung
        new = [number for number in range(rung) if number not in joined] + selves[known:copies]
        joined |= {number: {key: float(row["frames"]) for key in ("frames", "fights")} for number in new}
    return joined


def tree_figure(league: Mapping[str, Any], curves: Sequence[Row]) -> Any:
    """Return a matplotlib figure of the ratings of the learner and its opponents over decisions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.4), dpi=110, layout="constrained")
    axes = figure.subplots()
    x = np.array([row["frames"] for row in curves]) / 1e6
    elo = np.array([row.get("league/elo", np.nan) for row in curves], float)
    joined = members(league, curves)
    for row in joined:
        colour, at = SELF if row["self"] else PILOT, row["frames"] / 1e6
        axes.plot([at, x[-1]], [row["joined_at"], row["rating"]], color=colour, linewidth=1.1, alpha=0.75)
        axes.plot(at, row["joined_at"], "o", color=colour, markersize=6, markeredgecolor="white", zorder=4)
    axes.plot(x, elo, color=LEARNER, linewidth=2.2, zorder=3)
    names = [(row["rating"], f"{row['name']}  {row['rating']:.0f}", SELF if row["self"] else PILOT) for row in joined]
    names.append((float(elo[-1]), f"the learner  {elo[-1]:.0f}", LEARNER))
    low, high = axes.get_ylim()
    for at, (rating, text, colour) in zip(spread([n[0] for n in names], LABEL_GAP * (high - low)), names, strict=True):
        axes.annotate(
            text, (x[-1], rating), (1.03 * x[-1], at), color=colour, fontsize=9, va="center",
            weight="bold" if colour == LEARNER else "normal",
            parse_math=False, arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(0.0, 1.22 * x[-1])
    axes.set(xlabel="million decisions", ylabel="rating in training (first scripted policy: 1000)")
    axes.set_title("When opponents joined, and their present ratings", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return positions for labels: near their values, in the same order, and at least `gap` apart."""
    order = np.argsort(values, kind="stable")
    places = np.asarray(values, float)[order]
    for _ in range(200):
        close = np.maximum(gap - np.diff(places), 0.0)
        if close.max(initial=0.0) < 1e-6:
            break
        places[1:] += 0.5 * close
        places[:-1] -= 0.5 * close
    return places[np.argsort(order)].tolist()
