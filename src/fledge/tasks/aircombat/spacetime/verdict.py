"""Summary of a side's space-time graph in one sentence.

A verdict has a level: `calm` (no danger), `watch` (there is time), `act` (turn now, or soon), `late` (no manoeuvre helps).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOON_S = 8.0
EFFECTS = {
    "r_ne_m": "kills, whatever the enemy does",
    "r_tr_m": "kills, even if the enemy turns away",
    "r_max_m": "kills only if the enemy keeps its course",
}


def describe_shot(away_m: float, ranges: Mapping[str, Any]) -> str:
    """Return in a few words the effect of a shot fired now from `away_m` metres; `ranges` has R_max, R_tr and R_ne, m."""
    return next((text for name, text in EFFECTS.items() if away_m <= ranges[name]), "falls short")


def give_verdict(side: Mapping[str, Any], away_m: float, enemy_shot: Mapping[str, Any]) -> tuple[str, str]:
    """Return the level and the sentence for a side.

    They are about incoming missiles or, if there are none, about a shot that the enemy could fire now.
    """
    if side["incoming"]:
        return _incoming(side["incoming"])
    seconds = side["decide_s"]
    if away_m <= enemy_shot["r_ne_m"]:
        return "act", "Inside the enemy's no-escape range: a shot now would kill."
    if away_m <= enemy_shot["r_tr_m"]:
        return "act", "Inside the enemy's R_tr: turning away would not save you from a shot now."
    if seconds is None:
        return "calm", "Safe: you can turn away from any shot."
    return "act" if seconds <= SOON_S else "watch", f"{seconds:.0f} s until a shot could no longer be outrun."


def _incoming(missiles: list[dict[str, Any]]) -> tuple[str, str]:
    many = "A missile is coming" if len(missiles) == 1 else f"{len(missiles)} missiles are coming"
    fates = [missile["fates"] for missile in missiles]
    survived = [name for name in fates[0] if all(fate[name]["hit_s"] is None for fate in fates)]
    hits = [fate["hold"]["hit_s"] for fate in fates if fate["hold"]["hit_s"] is not None]
    if not hits:
        misses = min(fate["hold"]["miss_m"] for fate in fates) / 1000
        return "watch", f"{many}; if you hold course, the nearest misses by {misses:.1f} km."
    if "turn away" in survived:
        wait = min(missile["decide_s"] for missile in missiles if missile["decide_s"] is not None)
        when = "now" if wait < 1 else f"within {wait:.0f} s"
        level = "act" if wait <= SOON_S else "watch"
        return level, f"{many}: turn away {when}; if you hold course, it hits in {min(hits):.0f} s."
    if survived:
        only = " or ".join(survived)
        return "act", f"{many}: only {only} still escapes; if you hold course, it hits in {min(hits):.0f} s."
    return (
        "late",
        f"{many}: no single manoeuvre saves you; it hits in {min(hits):.0f} s. Break hard at the last moment.",
    )
