"""Why a fight was lost: the missile that killed, its launch, the last chance of a defence, and what the side flew.

Computed from the recorded frames, one per decision, and from fly-outs with the env's own missile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fledge.tasks.aircombat.spacetime.envelope import Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre
from fledge.tasks.aircombat.spacetime.recorded import Frames, config_of, distances, predicted_misses, shot_ranges
from fledge.tasks.view.trajectory import LossReason, Trajectory

DEAD = ({"loss", "draw"}, {"win", "draw"})  # outcomes in which side 0, and side 1, dies
DEFENCES = {
    Manoeuvre.AWAY: "turning away",
    Manoeuvre.BEAM_LEFT: "putting it on the beam",
    Manoeuvre.BEAM_RIGHT: "putting it on the beam",
    Manoeuvre.BREAK_LEFT: "running with a break at the end",
    Manoeuvre.BREAK_RIGHT: "running with a break at the end",
    Manoeuvre.HARD_LEFT: "turning hard all the time",
    Manoeuvre.HARD_RIGHT: "turning hard all the time",
    Manoeuvre.LATE_LEFT: "holding on with a break at the end",
    Manoeuvre.LATE_RIGHT: "holding on with a break at the end",
}
RUNNING = 0.7  # smallest `away_cosine` at which a fighter counts as running from the missile


@dataclass
class Kill:
    """The missile that killed a side."""

    slot: int | None  # index among the enemy's missiles; None: fired in the last decision, so not recorded
    fired: int | None  # frame of the launch; None: in flight when the fight began
    end_s: float  # time of the hit


def find_kill(frames: Frames, side: int, kill_radius_m: float) -> Kill:
    """Return the enemy's missile that killed a side after the last frame: the one with the shortest `time_to_kill`.

    Its slot is None if no recorded missile was near enough, so that it was fired in the last decision.
    """
    enemy, time = 1 - side, frames["time_s"]
    last = len(time) - 1
    flying = np.flatnonzero(frames["missile_alive"][-1, enemy]).tolist()
    near = ((time_to_kill(frames, side, slot, last, kill_radius_m), slot) for slot in flying)
    togo, slot = min(near, default=(np.inf, -1))
    step = float(np.median(np.diff(time))) if last else 1.0
    if togo > 3.0 * step:
        return Kill(None, last, float(time[-1]) + 0.5 * step)
    first = int(np.flatnonzero(frames["missile_alive"][:, enemy, slot])[0])
    return Kill(slot, first - 1 if first else None, float(time[-1]) + min(togo, step))


def unit(heading: Any) -> np.ndarray:
    """Return the unit vectors [..., 2] of headings [...], rad."""
    return np.stack([np.cos(heading), np.sin(heading)], axis=-1)


def time_to_kill(frames: Frames, side: int, slot: int, frame: int, kill_radius_m: float) -> float:
    """Return the seconds until the enemy's missile `slot`, at its closing speed in `frame`, is within kill radius of a side.

    Return inf if it does not come closer. The distance is that to the kill radius, not to the fighter: in a tail chase the
    last metres take seconds.
    """
    enemy = 1 - side
    r = frames["pos"][frame, side] - frames["missile_pos"][frame, enemy, slot]
    missile = unit(frames["missile_heading"][frame, enemy, slot])
    v = frames["missile_speed"][frame, enemy, slot] * missile
    range_m = max(float(np.linalg.norm(r)), 1e-3)
    closing = float((v - frames["speed"][frame, side] * unit(frames["heading"][frame, side])) @ r) / range_m
    gap = max(range_m - kill_radius_m, 0.0)
    return gap / closing if closing > 0 else np.inf


def away_cosine(frames: Frames, side: int, slot: int) -> np.ndarray:
    """Return in each of T frames the cosine of the angle between a side's course and the direction from the missile to it."""
    away = frames["pos"][:, side] - frames["missile_pos"][:, 1 - side, slot]
    along: np.ndarray = (away * unit(frames["heading"][:, side])).sum(-1)
    return along / np.maximum(np.linalg.norm(away, axis=-1), 1.0)


def explain_loss(track: Trajectory, side: int = 0) -> LossReason | None:
    """Return the reason why a side died; None if it did not die."""
    frames = track.frames
    if track.outcome not in DEAD[side] or not len(frames["time_s"]):
        return None
    cfg = config_of(track.scene)
    kill = find_kill(frames, side, cfg.missile.kill_radius_m)
    with Envelope(cfg) as envelope:
        kind, chance = describe_chance(frames, side, kill, envelope)
        launch = describe_launch(frames, side, kill, envelope)
    both = "; its own missile hit in the same moment" if track.outcome == "draw" else ""
    killed = f"Killed {kill.end_s:.0f} s in by a missile {launch}: {chance}{both}."
    return LossReason(kind, f"{killed} {describe_shots(frames, side)}")


def describe_launch(frames: Frames, side: int, kill: Kill, envelope: Envelope) -> str:
    """Return in words when and from what range the missile was launched."""
    if kill.fired is None:
        return "that was on its way from the start"
    r_max, r_tr, r_ne = shot_ranges(frames, envelope)[kill.fired, 1 - side] / 1000.0
    away = distances(frames)[kill.fired] / 1000.0
    bounds = (("R_ne", r_ne), ("R_tr", r_tr), ("R_max", r_max))
    inside = next((f"inside {name} ({reach:.1f} km)" for name, reach in bounds if away <= reach), "outside R_max")
    return f"fired {kill.end_s - frames['time_s'][kill.fired]:.0f} s before at {away:.1f} km, {inside}"


def describe_chance(frames: Frames, side: int, kill: Kill, envelope: Envelope) -> tuple[str, str]:
    """Return the kind of loss, and in words whether a defence would have helped and what the side flew instead."""
    if kill.slot is None:
        return "fired point-blank", "there was no time left to turn"
    near = predicted_misses(frames, envelope, 1 - side, kill.slot, tuple(DEFENCES))  # [manoeuvres, T]
    if np.isnan(near).all():
        return "not known", "whether a defence would have helped is not known"
    before = kill.end_s - frames["time_s"]  # seconds before the hit
    saves = near > envelope.cfg.missile.kill_radius_m
    away = list(DEFENCES).index(Manoeuvre.AWAY)
    cosine = away_cosine(frames, side, kill.slot)
    towards = np.flatnonzero((cosine < 0.0) & ~np.isnan(near[0]))
    flown = f"it flew towards the missile until {before[towards[-1]]:.0f} s before the hit" if len(towards) else ""
    if saves[away].any():
        last = int(np.flatnonzero(saves[away])[-1])
        when = f"{before[last]:.0f} s before the hit"
        if cosine[last] > RUNNING:
            return "did not run on", f"{when} it was running from the missile; running on would have saved it"
        done = flown or "it did not turn away from it"
        return "turned away too late", f"turning away saved until {when}, but {done}"
    if saves.any():
        last = int(np.flatnonzero(saves.any(axis=0))[-1])
        way = list(DEFENCES.values())[int(saves[:, last].argmax())]
        helped = f"turning away no longer helped, but {way} did until {before[last]:.0f} s before the hit"
        return "missed the way out", helped
    kind, came = describe_approach(frames, side, kill, envelope)
    return kind, f"no defence helped any more; {came}" + (f", and {flown}" if flown else "")


def describe_approach(frames: Frames, side: int, kill: Kill, envelope: Envelope) -> tuple[str, str]:
    """Return the kind of loss, and in words how the side came to be where no defence helps."""
    if kill.fired is None:
        return "lost from the start", "none did from the start"
    inside = distances(frames) <= shot_ranges(frames, envelope)[:, 1 - side, 1]
    outside = np.flatnonzero(~inside[: kill.fired + 1])
    if not len(outside):
        return "began inside R_tr", "it began inside the enemy's R_tr"
    seconds = float(frames["time_s"][kill.fired] - frames["time_s"][outside[-1]])
    late = f"it had been in R_tr for {seconds:.0f} s"
    return "came inside R_tr", "it came into the enemy's R_tr as the enemy fired" if seconds <= 1.5 else late


def describe_shots(frames: Frames, side: int) -> str:
    """Return in words whether `side` fired before its enemy did, and how many missiles it had left."""
    alive = frames["missile_alive"]
    used: Any = alive.any(axis=0)  # [2, S]
    first = [int(alive[:, s].any(axis=1).argmax()) if alive[:, s].any() else None for s in (0, 1)]
    left = f"{int((~used[side]).sum()) or 'none'} of its {used.shape[1]} missiles left"
    mine, theirs = first[side], first[1 - side]
    if mine is None:
        return f"It had not fired; it had {left}."
    shot = "It had fired first" if theirs is None or mine < theirs else "It had fired, too, but later"
    return f"{'Both had fired at once' if mine == theirs else shot}; it had {left}."
