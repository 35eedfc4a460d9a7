"""A picture of one geometry: kill ranges around the target, and distances from the launch over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre
from fledge.tasks.aircombat.spacetime.query import EnvelopeConfig

RINGS = (
    ("r_max_m", "R_max: holds its course", "#f2b134", "#a06a00"),
    ("r_tr_m", "R_tr: turns away and runs", "#e4572e", "#b0330f"),
    ("r_ne_m", "R_ne: whatever it does", "#8c1c13", "#8c1c13"),
)
PATHS = (
    (Manoeuvre.HARD_LEFT, "", "#b0b0b0", 1.2),
    (Manoeuvre.HARD_RIGHT, "turns hard", "#b0b0b0", 1.2),
    (Manoeuvre.HOLD, "holds", "#1f4e9c", 2.6),
    (Manoeuvre.AWAY, "turns away", "#1b9e5a", 2.6),
)
ASPECTS = np.arange(-180, 181, 3.0)
EVERY_S = 0.5


def save_picture(cfg: EnvelopeConfig, envelope: Envelope, answer: dict[str, Any], path: Path) -> None:
    """Draw the ranges and paths of one geometry to an image file."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 6.2), dpi=110, layout="constrained")
    _draw_rings(drawn.add_subplot(1, 2, 1), cfg, envelope)
    _draw_ground(drawn.add_subplot(1, 2, 2), cfg, envelope, answer)
    title = f"shooter {cfg.own_speed:g} m/s, target {cfg.target_speed:g} m/s, {cfg.off_boresight_deg:g}° off boresight"
    drawn.suptitle(title + ("" if cfg.env.load_limits else ", no load limits"), fontsize=13)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)


def _draw_rings(ax: Any, cfg: EnvelopeConfig, envelope: Envelope) -> None:
    """Draw the positions around a target, whose nose points up, from which a shot kills."""
    ranges = envelope.solve(cfg.own_speed, cfg.target_speed, cfg.off_boresight_deg, torch.from_numpy(ASPECTS))
    found = {name: value.numpy() / 1000 for name, value in ranges.items()}  # km
    angles = np.radians(ASPECTS)
    for name, label, colour, dark in RINGS:
        x, y = -found[name] * np.sin(angles), found[name] * np.cos(angles)
        ax.fill(x, y, color=colour, alpha=0.3)
        ax.plot(x, y, color=dark, linewidth=1.8, label=label)
    _label_rings(ax, found)
    shooter = cfg.range_m / 1000
    place = (-shooter * np.sin(np.radians(cfg.aspect_deg)), shooter * np.cos(np.radians(cfg.aspect_deg)))
    ax.plot(*place, marker="o", color="black", markersize=7)
    ax.annotate(f"shooter, {shooter:g} km", place, textcoords="offset points", xytext=(9, -4), fontsize=10)
    arrow = {"arrowstyle": "-|>", "color": "#1f4e9c", "lw": 3, "mutation_scale": 18}
    ax.annotate("", (0, 3), (0, -3), arrowprops=arrow)
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.08)
    ax.grid(alpha=0.3)
    ax.set(xlabel="km", ylabel="km")
    ax.set_title("Shots from here kill a target that ... (nose up)", fontsize=12)
    ax.legend(loc="upper left", fontsize=10, framealpha=0.9)


def _label_rings(ax: Any, rings: dict[str, np.ndarray]) -> None:
    """Label r_max and r_tr ahead of the target, and r_max beside and behind it, in km; further labels would overlap."""
    ahead, beam, behind = (int(np.argmin(abs(ASPECTS - aspect))) for aspect in (0, 90, 180))
    for name, _, _, dark in RINGS:
        km = rings[name]
        style = {"textcoords": "offset points", "color": dark, "fontsize": 10, "weight": "bold"}
        if name != "r_ne_m":
            ax.annotate(f"{km[ahead]:.0f} km", (0, km[ahead]), xytext=(5, 2), **style)
        if name == "r_max_m":
            ax.annotate(f"{km[beam]:.0f} km", (-km[beam], 0), xytext=(-38, -4), **style)
            ax.annotate(f"{km[behind]:.0f} km", (0, -km[behind]), xytext=(5, -14), **style)


def _draw_ground(ax: Any, cfg: EnvelopeConfig, envelope: Envelope, answer: dict[str, Any]) -> None:
    """Draw distances from the launch point over time: how far the missile can be, and the target's paths."""
    nose = torch.tensor([cfg.off_boresight_deg])
    reach = envelope.missile_reach(cfg.own_speed, nose, 200.0, EVERY_S)[0].numpy() / 1000
    alive = float(np.flatnonzero(np.isfinite(reach))[-1]) * EVERY_S
    hits = {name: answer[f"flight_{name}_s"] for name in ("hold", "turn_away") if answer[f"kills_{name}"]}
    until = min(alive, max(45.0, 1.3 * max(hits.values(), default=0.0)))
    times = np.arange(int(until / EVERY_S) + 1) * EVERY_S
    reach = np.maximum(reach[: len(times)], 0)
    ax.fill_betweenx(times, 0, reach, color="#e4572e", alpha=0.18)
    ax.plot(reach, times, color="#e4572e", linewidth=2.6)
    ax.text(0.03, 0.5, "the missile\ncan be here", transform=ax.transAxes, color="#b0330f", fontsize=12)
    farthest = float(reach.max())
    for manoeuvre, label, colour, width in PATHS:
        path = envelope.target_path(manoeuvre, cfg.range_m, **cfg.geometry, duration_s=until, every_s=EVERY_S)
        km = path.norm(dim=-1).numpy()[: len(times)] / 1000
        farthest = max(farthest, float(km.max()))
        ax.plot(km, times, color=colour, linewidth=width)
        end = int(0.93 * len(times))
        ax.annotate(label, (km[end], times[end]), (6, 0), textcoords="offset points", color=colour, fontsize=11)
        if (name := {Manoeuvre.HOLD: "hold", Manoeuvre.AWAY: "turn_away"}.get(manoeuvre)) in hits:
            at = int(hits[name] / EVERY_S)
            ax.plot(km[at], times[at], marker="X", color="black", markersize=11)
            text = f"hit, {hits[name]:.0f} s"
            ax.annotate(text, (km[at], times[at]), (10, -4), textcoords="offset points", fontsize=11)
    ax.set_title(f"A shot at {cfg.range_m / 1000:g} km: {_verdict(answer)}", fontsize=11)
    ax.set(xlim=(0, 1.2 * farthest), ylim=(0, until))
    ax.set(xlabel="distance from where the missile was fired, km", ylabel="time, s")
    ax.grid(alpha=0.3)


def _verdict(answer: dict[str, Any]) -> str:
    seconds = answer["time_to_decide_s"]
    if seconds == 0 or answer["kills_turn_away"]:
        return "too late to turn away"
    told = "which is never too late" if seconds is None else f"{seconds:.0f} s to decide"
    return f"turning away saves by {answer['miss_turn_away_m'] / 1000:.1f} km; {told}"
