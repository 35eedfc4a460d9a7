"""Instruments of a recorded fight, and the energy of its missiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fledge.tasks.view.stage import Instrument
from fledge.tasks.view.trajectory import Trajectory

SIDES = ("blue", "red")
FAST, SPENT = 1200.0, 200.0  # m/s of a missile with all its energy, and with none left to manoeuvre


def with_energy(track: Trajectory) -> Trajectory:
    """Return the track with `missile_energy`, 0 to 1: kinetic energy above that of a spent missile."""
    if "missile_speed" not in track.frames:
        return track
    share = (np.square(track.frames["missile_speed"], dtype=np.float32) - SPENT**2) / (FAST**2 - SPENT**2)
    return replace(track, frames={**track.frames, "missile_energy": np.clip(share, 0.0, 1.0)})


def fight_instruments(track: Trajectory) -> list[Instrument]:
    """Return distance, speeds and missiles in flight."""
    frames = track.frames
    shown = [Instrument("range", np.linalg.norm(frames["pos"][:, 0] - frames["pos"][:, 1], axis=-1) / 1000.0, "km")]
    shown += [Instrument(f"{name} speed", frames["speed"][:, side], "m/s") for side, name in enumerate(SIDES)]
    flying = frames["missile_alive"].astype(bool)
    shown += [
        Instrument(f"{name} missiles in the air", flying[:, side].sum(axis=-1)) for side, name in enumerate(SIDES)
    ]
    fastest = np.where(flying, frames["missile_speed"], np.nan)
    for side, name in enumerate(SIDES):
        if flying[:, side].any():
            best = np.max(np.nan_to_num(fastest[:, side], nan=-1.0), axis=-1)
            shown.append(Instrument(f"{name}'s fastest missile", np.where(best < 0, np.nan, best), "m/s"))
    return shown
