"""The space-time graph of a side in one sentence.

A verdict has a level: `calm` (no danger), `watch` (there is time), `act` (turn now, or soon), `late` (no manoeuvre saves).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SOON_S = 8.0


def describe_shot(away_m: float, ranges: Mapping[str, Any]) -> str:
    """Return what a shot now would do."""
    if away_m <= ranges["r_ne_m"]:
        return "kills, whatever the enemy does"
    if away_m <= ranges["r_tr_m"]:
        return "kills, even if the enemy turns away"
    if away_m <= ranges["r_max_m"]:
        return "kills only if the enemy keeps its course"
    return "falls short"


def give_verdict(side: Mapping[str, Any], away_m: float, enemy_shot: Mapping[str, Any]) -> dict[str, str]:
    """Return the level and sentence of a side: missiles in flight first, then possible shots."""
    if side["incoming"]:
        return _incoming(side["incoming"])
    seconds = side["decide_s"]
    if away_m <= enemy_shot["r_ne_m"]:
        return {"level": "act", "text": "Inside the enemy's no-escape range: a shot now would kill."}
    if away_m <= enemy_shot["r_tr_m"]:
        return {"level": "act", "text": "Inside the enemy's R_tr: turning away would not save you from a shot now."}
    if seconds is None:
        return {"level": "calm", "text": "Safe: you can turn away from any shot."}
    level = "act" if seconds <= SOON_S else "watch"
    return {"level": level, "text": f"{seconds:.0f} s until a shot could no longer be outrun."}


def _incoming(missiles: list[dict[str, Any]]) -> dict[str, str]:
    many = "A missile comes" if len(missiles) == 1 else f"{len(missiles)} missiles come"
    survived = [
        name for name in missiles[0]["fates"] if all(missile["fates"][name]["hit_s"] is None for missile in missiles)
    ]
    hits = [missile["fates"]["hold"]["hit_s"] for missile in missiles if missile["fates"]["hold"]["hit_s"] is not None]
    if not hits:
        misses = min(missile["fates"]["hold"]["miss_m"] for missile in missiles) / 1000
        return {"level": "watch", "text": f"{many}; held, the nearest misses by {misses:.1f} km."}
    if "turn away" in survived:
        wait = min(missile["decide_s"] for missile in missiles if missile["decide_s"] is not None)
        when = "now" if wait < 1 else f"within {wait:.0f} s"
        level = "act" if wait <= SOON_S else "watch"
        return {"level": level, "text": f"{many}: turn away {when}; held, it hits in {min(hits):.0f} s."}
    if survived:
        return {
            "level": "act",
            "text": f"{many}: only {' or '.join(survived)} still helps; held, it hits in {min(hits):.0f} s.",
        }
    return {
        "level": "late",
        "text": f"{many}: nothing plain saves you; it hits in {min(hits):.0f} s. Break late, hard.",
    }
