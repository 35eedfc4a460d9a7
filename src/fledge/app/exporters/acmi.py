"""Episodes as Tacview ACMI 2.2, a text format (tacview.net/documentation/acmi).

    FileType=text/acmi/tacview                          the two lines that every file begins with
    FileVersion=2.2
    0,ReferenceTime=2000-01-01T00:00:00Z                properties of the whole, object 0
    #12.5                                               from here on it is 12.5 s later
    3,T=0.0123|0.0456|5000|0|0|90|1365|5042|90,...      an object, by a hexadecimal number, with the properties that changed
    -3                                                  it is removed
    0,Event=Destroyed|3|                                an event

`T` is longitude | latitude | altitude | roll | pitch | yaw | u | v | heading (degrees, metres; yaw and heading clockwise from
north; u, v: our own x and y), or longitude | latitude | altitude | u | v of what has no heading. Metres become degrees by the
radii of curvature of WGS 84 at the reference point: to 3 m at 80 km on the equator, less exact in high latitudes; u and v are
exact everywhere. The default reference has sea below. An object's event comes before its removal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fledge.app.recordings.trajectory import checked_frames
from fledge.core.errors import InputError
from fledge.storage import Recording
from fledge.storage.disk.durable import write_text
from fledge.tasks.base import Task
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.trajectory import Trajectory

TYPES = {
    "aircraft": "Air+FixedWing",
    "drone": "Air+Rotorcraft",
    "missile": "Weapon+Missile",
    "obstacle": "Ground+Light+Human",
    "goal": "Navaid+Static+Waypoint",
}
COALITIONS = {"blue": "Allies", "red": "Enemies"}
REFERENCE = (0.0, 0.0)  # longitude, latitude; degrees
ALTITUDE_M = 5000.0
_A, _E2 = 6378137.0, 6.69437999014e-3  # WGS 84: radius at the equator, m, and eccentricity squared


def export_acmi(
    recording: Recording,
    task: Task,
    target: str | Path,
    episode: int | None = None,
    reference: tuple[float, float] = REFERENCE,
    altitude_m: float = ALTITUDE_M,
) -> dict[str, int | float | str]:
    """Write one episode of a recording as an ACMI file, and return figures of it.

    Args:
        task: The task of the recording.
        episode: Its number; the first by default.
        reference: Longitude and latitude of the world's origin, degrees.
        altitude_m: Altitude of objects in a world without one.
    """
    episode = episode or 0
    track, flown = Trajectory(**recording.track(episode)), recording[episode]
    told = track.frames.get("time_s")  # for tasks whose decisions differ in length
    with checked_frames(recording.path, task):
        times = flown.times() if told is None or told.ndim != 1 else told.astype(np.float64)
        objects = task.view.objects(track)
        if not objects:
            fields = ", ".join(recording.fields)
            raise InputError(f"{recording.path} holds no positions ({fields}): there is nothing to export.")
        title = f"{recording.task}: episode {flown.facts.get('episode', episode)}, {track.outcome}"
        text = "".join(acmi_lines(objects, times, title, recording.seconds_per_frame, reference, altitude_m))
    write_text(target, text)
    return {"episode": episode, "outcome": track.outcome, "objects": len(objects), "frames": len(times),
            "seconds": round(float(times[-1]) if len(times) else 0.0, 3)}  # fmt: skip


@dataclass
class _Stay:
    """One stay of an object in the scene: frames `first` to `last`, exclusive."""

    id: str
    thing: SceneObject
    first: int
    last: int
    parent: str | None = None


def acmi_lines(
    objects: Sequence[SceneObject],
    times: np.ndarray,
    title: str,
    frame_s: float,
    reference: tuple[float, float] = REFERENCE,
    altitude_m: float = ALTITUDE_M,
) -> Iterator[str]:
    """Yield the text of a file: objects with a frame at each of `times` (s)."""
    lon, lat = reference
    if not -180 <= lon <= 180 or not -85 <= lat <= 85:
        raise InputError(f"reference={lon}, {lat} must be a longitude within ±180° and a latitude within ±85°.")
    yield "FileType=text/acmi/tacview\nFileVersion=2.2\n"
    yield f"0,ReferenceTime=2000-01-01T00:00:00Z,ReferenceLongitude={lon:.7f},ReferenceLatitude={lat:.7f}\n"
    yield f"0,Title={escape(title)},DataSource=Fledge,DataRecorder=Fledge,Category=Simulation\n"
    stays = _stays(objects, len(times))
    rows = {stay.id: _rows(stay.thing, len(times), lat, altitude_m) for stay in stays}
    end = float(times[-1]) + frame_s if len(times) else 0.0
    for k in range(len(times) + 1):
        lines = []
        for stay in stays:
            if k == stay.last:
                lines += _removal(stay, over=k == len(times))
            elif stay.first == k:
                lines.append(f"{stay.id},T={rows[stay.id][k]},{_about(stay)}\n")
            elif stay.first < k < stay.last and len(stay.thing.pos) > 1:
                lines.append(f"{stay.id},T={rows[stay.id][k]}\n")
        if k == len(times):
            lines.insert(0, f"0,Event=Bookmark|{escape(title)}\n")
        if lines:
            yield f"#{times[k] if k < len(times) else end:.3f}\n"
            yield from lines


def _stays(objects: Sequence[SceneObject], count: int) -> list[_Stay]:
    """Return all stays of all objects, each with an id of its own and that of the stay that launched it."""
    stays: list[_Stay] = []
    of: dict[int | None, list[_Stay]] = {}
    for k, thing in enumerate(objects):
        there = np.ones(count, bool) if thing.present is None else np.asarray(thing.present, bool)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
        of[k] = []
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            parent = next((owner.id for owner in reversed(of.get(thing.parent, [])) if owner.first <= first), None)
            of[k].append(_Stay(f"{len(stays) + 1:x}", thing, first, last, parent))
            stays.append(of[k][-1])
    return stays


def _about(stay: _Stay) -> str:
    thing = stay.thing
    told = {"Name": escape(thing.name), "Type": TYPES[thing.kind], "Color": thing.colour.capitalize()}
    told |= {"Coalition": COALITIONS[thing.colour]} if thing.colour in COALITIONS else {}
    told |= {"Parent": stay.parent} if stay.parent else {}
    return ",".join(f"{key}={value}" for key, value in told.items())


def _removal(stay: _Stay, over: bool) -> list[str]:
    """Return the event of an object that leaves, and its removal. At the end of the episode all objects leave."""
    thing, event = stay.thing, f"LeftArea|{stay.id}|"
    if thing.kind == "missile" and not over:
        source = f"SourceId:{stay.parent}|" if stay.parent else ""
        event = f"Timeout|{source}AmmoType:{escape(thing.name)}|AmmoCount:1"
    elif thing.destroyed if over else thing.kind in ("aircraft", "drone"):
        event = f"Destroyed|{stay.id}|"
    return [f"0,Event={event}\n", f"-{stay.id}\n"]


def _rows(thing: SceneObject, count: int, lat_deg: float, altitude_m: float) -> list[str]:
    """Return the value of T at each frame."""
    pos = np.broadcast_to(np.asarray(thing.pos, np.float64), (count, thing.pos.shape[-1]))
    x, y = pos[:, 0], pos[:, 1]
    z = pos[:, 2] if pos.shape[1] > 2 else np.full(count, altitude_m)
    sin = math.sin(math.radians(lat_deg))
    north = _A * (1 - _E2) / (1 - _E2 * sin * sin) ** 1.5  # radius of curvature along the meridian
    east = _A / math.sqrt(1 - _E2 * sin * sin) * math.cos(math.radians(lat_deg))
    lon, lat = np.degrees(x / east), np.degrees(y / north)
    form, values = "{:.7f}|{:.7f}|{:.2f}|{:.2f}|{:.2f}", [lon, lat, z, x, y]
    if thing.heading is not None:
        yaw = (90.0 - np.degrees(np.broadcast_to(np.asarray(thing.heading, np.float64), count))) % 360.0
        form, values = "{:.7f}|{:.7f}|{:.2f}|0|0|{:.2f}|{:.2f}|{:.2f}|{:.2f}", [lon, lat, z, yaw, x, y, yaw]
    return [form.format(*row) for row in zip(*values, strict=True)]


def escape(text: str) -> str:
    """Return text as a property value: special characters escaped; unprintable ones, and | (a separator), replaced."""
    shown = "".join(char if char.isprintable() or char == "\n" else " " for char in text.replace("\r\n", "\n"))
    return shown.translate({ord("\\"): "/", ord("|"): "/", ord(","): "\\,", ord("\n"): "\\\n"})
