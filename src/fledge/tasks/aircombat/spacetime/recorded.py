"""Shot ranges and predicted misses at every frame of a recorded fight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.core.errors import FormatError
from fledge.core.overrides import from_plain, nested
from fledge.core.settings import check_settings, flat_settings
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.spacetime.curves import fly_on
from fledge.tasks.aircombat.spacetime.envelope import RANGES, Envelope
from fledge.tasks.aircombat.spacetime.manoeuvres import Manoeuvre

PHYSICS = ("fighter.", "missile.", "load_limits", "rudder_rate", "dt_s")  # settings of the physics
Frames = Mapping[str, np.ndarray]


def physics_settings(cfg: AircombatConfig) -> dict[str, Any]:
    """Return the physics settings that differ from the defaults, for the scene of a recording."""
    usual = flat_settings(AircombatConfig())
    return {k: v for k, v in flat_settings(cfg).items() if k.startswith(PHYSICS) and v != usual[k]}


def config_of(scene: Mapping[str, Any]) -> AircombatConfig:
    """Return a config with the physics of a recorded fight.

    Raises:
        FormatError: if the scene's `physics` is not a dict of physics settings.
    """
    changed = scene.get("physics") or {}
    if not isinstance(changed, Mapping) or not all(str(key).startswith(PHYSICS) for key in changed):
        raise FormatError(
            f"The recording's physics is {changed!r}, but must be a dict of settings such as missile.burn_s. Use another "
            "recording."
        )
    cfg: AircombatConfig = from_plain(AircombatConfig, nested(dict(changed)))
    check_settings(cfg, "env.")
    return cfg


def distances(frames: Frames) -> np.ndarray:
    """Return the distance between the two sides in each of T frames, m."""
    return np.linalg.norm(frames["pos"][:, 1] - frames["pos"][:, 0], axis=-1)


def shot_ranges(frames: Frames, envelope: Envelope) -> np.ndarray:
    """Return R_max, R_tr and R_ne of each side's shot at the other in each of T frames, m; shape [T, 2, 3]."""
    pos, heading, speed = (np.asarray(frames[name], np.float64) for name in ("pos", "heading", "speed"))
    enemy = pos[:, ::-1] - pos
    off = np.degrees(np.arctan2(enemy[..., 1], enemy[..., 0]) - heading)
    columns = (speed, speed[:, ::-1], off, off[:, ::-1])
    found = envelope.lookup(*(torch.from_numpy(column.astype(np.float32)) for column in columns))
    return np.stack([found[name].cpu().numpy() for name in RANGES], axis=-1)


def predicted_misses(
    frames: Frames, envelope: Envelope, owner: int, slot: int, manoeuvres: Sequence[Manoeuvre]
) -> np.ndarray:
    """Return for each manoeuvre and frame how close a missile comes if its target begins the manoeuvre in that frame.

    The closest approaches, m, have the shape [manoeuvres, T]. They are NaN where the missile is not in flight, and everywhere
    if the frames lack `missile_motor_s`.

    Args:
        owner: Side that fired the missile.
        slot: Index of the missile among those of its side.
    """
    found = np.full((len(manoeuvres), len(frames["time_s"])), np.nan)
    steps = np.flatnonzero(frames["missile_alive"][:, owner, slot])
    if not len(steps) or "missile_motor_s" not in frames:
        return found

    def flyers(prefix: str, place: tuple[Any, ...]) -> torch.Tensor:
        pos, rest = frames[f"{prefix}pos"][place], [frames[f"{prefix}{name}"][place] for name in ("heading", "speed")]
        return torch.from_numpy(np.column_stack([pos, *rest]).astype(np.float32))

    missiles, targets = flyers("missile_", (steps, owner, slot)), flyers("", (steps, 1 - owner))
    burns = torch.from_numpy(frames["missile_motor_s"][steps, owner, slot].astype(np.float32))
    out = torch.empty(len(manoeuvres), len(steps))
    given = [wp.from_torch(missiles, dtype=wp.vec4), wp.from_torch(burns), wp.from_torch(targets, dtype=wp.vec4)]
    for row, manoeuvre in zip(out, manoeuvres, strict=True):
        args = [envelope.physics, int(manoeuvre), envelope.cfg.dt_s, *given, wp.from_torch(row)]
        envelope.run(fly_on, args, len(steps))
    found[:, steps] = out.numpy()
    return found
