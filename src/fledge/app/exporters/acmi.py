"""Episodes as Tacview ACMI 2.2, a text format (tacview.net/documentation/acmi).

    FileType=text/acmi/tacview                          the two lines that every file begins with
    FileVersion=2.2
    0,ReferenceTime=2000-01-01T00:00:00Z                properties of the whole recording, object 0
    #12.5                                               the lines below this one are at time 12.5 s
    3,T=0.0123|0.0456|5000|0|0|90|1365|5042|90,...      an object, by a hexadecimal number, with the properties that changed
    -3                                                  object 3 is removed
    0,Event=Destroyed|3|                                an event

`T` is longitude | latitude | altitude | roll | pitch | yaw | u | v | heading (degrees, metres; yaw and heading clockwise from
north; u, v: x and y in the env), or longitude | latitude | altitude | u | v for objects without heading. Metres become
degrees by the radii of curvature of WGS 84 at the reference point: the error is 3 m at 80 km on the equator, and more in high
latitudes; u and v are exact everywhere. The default reference lies in the sea. An object's event comes before its removal.
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
    """Write one episode of a recording as an ACMI file; return its number, outcome and size as a dict.

    Args:
        task: The task of the recording.
        episode: Number of the episode; the first by default.
        reference: Longitude and latitude of the env's origin of coordinates, degrees.
        altitude_m: Altitude of objects whose positions have only x and y.
    """
    episode = episode or 0
    track, flown = Trajectory(**recording.track(episode)), recording[episode]
    told = track.frames.get("time_s")  # for tasks whose decisions differ in length
    with checked_frames(recording.path, task):
        times = flown.times() if told is None or told.ndim != 1 else told.astype(np.float64)
        objects = task.view.objects(track)
        if not objects:
            fields = ", ".join(recording.fields)
            raise InputError(
                f"{recording.path} holds no positions for an ACMI file, only {fields}. Export it as .json."
            )
        title = f"{recording.task}: episode {flown.facts.get('episode', episode)}, {track.outcome}"
        text = "".join(acmi_lines(objects, times, title, recording.seconds_per_frame, reference, altitude_m))
    write_text(target, text)
    return {"episode": episode, "outcome": track.outcome, "objects": len(objects), "frames": len(times),
            "seconds": round(float(times[-1]) if len(times) else 0.0, 3)}  # fmt: skip


@dataclass
class _Presence:
    """Period in which an object is in the scene: from frame `first` up to, not including, `last`.

    In the file every period has its own object id.
    """

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
    """Yield the lines of an ACMI file for `objects`.

    Args:
        times: Time of each frame, s.
        frame_s: Time between frames, s; the episode ends this long after its last frame.
        reference, altitude_m: As in `export_acmi`.
    """
    lon, lat = reference
    if not -180 <= lon <= 180 or not -85 <= lat <= 85:
        raise InputError(
            f"reference=({lon}, {lat}) must be a longitude from -180° to 180° and a latitude from -85° to 85°."
        )
    yield "FileType=text/acmi/tacview\nFileVersion=2.2\n"
    yield f"0,ReferenceTime=2000-01-01T00:00:00Z,ReferenceLongitude={lon:.7f},ReferenceLatitude={lat:.7f}\n"
    yield f"0,Title={escape(title)},DataSource=Fledge,DataRecorder=Fledge,Category=Simulation\n"
    presences = _presences(objects, len(times))
    rows = {presence.id: _rows(presence.thing, len(times), lat, altitude_m) for presence in presences}
    end = float(times[-1]) + frame_s if len(times) else 0.0
    for k in range(len(times) + 1):
        lines = []
        for presence in presences:
            if k == presence.last:
                lines += _removal(presence, over=k == len(times))
            elif presence.first == k:
                lines.append(f"{presence.id},T={rows[presence.id][k]},{_about(presence)}\n")
            elif presence.first < k < presence.last and len(presence.thing.pos) > 1:
                lines.append(f"{presence.id},T={rows[presence.id][k]}\n")
        if k == len(times):
            lines.insert(0, f"0,Event=Bookmark|{escape(title)}\n")
        if lines:
            yield f"#{times[k] if k < len(times) else end:.3f}\n"
            yield from lines


def _presences(objects: Sequence[SceneObject], count: int) -> list[_Presence]:
    """Return every period in which an object is in the scene, in an episode of `count` frames.

    The `parent` of a missile's period is the id of the aircraft that launched it.
    """
    presences: list[_Presence] = []
    of: dict[int | None, list[_Presence]] = {}
    for k, thing in enumerate(objects):
        there = np.ones(count, bool) if thing.present is None else np.asarray(thing.present, bool)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
        of[k] = []
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            parent = next((owner.id for owner in reversed(of.get(thing.parent, [])) if owner.first <= first), None)
            of[k].append(_Presence(f"{len(presences) + 1:x}", thing, first, last, parent))
            presences.append(of[k][-1])
    return presences


def _about(presence: _Presence) -> str:
    thing = presence.thing
    told = {"Name": escape(thing.name), "Type": TYPES[thing.kind], "Color": thing.colour.capitalize()}
    told |= {"Coalition": COALITIONS[thing.colour]} if thing.colour in COALITIONS else {}
    told |= {"Parent": presence.parent} if presence.parent else {}
    return ",".join(f"{key}={value}" for key, value in told.items())


def _removal(presence: _Presence, over: bool) -> list[str]:
    """Return two lines: an event that says why an object leaves the scene, and the object's removal.

    `over` is True if the object leaves because the episode ended.
    """
    thing, event = presence.thing, f"LeftArea|{presence.id}|"
    if thing.kind == "missile" and not over:
        source = f"SourceId:{presence.parent}|" if presence.parent else ""
        event = f"Timeout|{source}AmmoType:{escape(thing.name)}|AmmoCount:1"
    elif thing.destroyed if over else thing.kind in ("aircraft", "drone"):
        event = f"Destroyed|{presence.id}|"
    return [f"0,Event={event}\n", f"-{presence.id}\n"]


def _rows(thing: SceneObject, count: int, lat_deg: float, altitude_m: float) -> list[str]:
    """Return the ACMI property T of an object in each of `count` frames; `lat_deg` is the latitude of the reference."""
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
    """Return text as an ACMI property value: escape special characters, replace unprintable ones and the separator |."""
    shown = "".join(char if char.isprintable() or char == "\n" else " " for char in text.replace("\r\n", "\n"))
    return shown.translate({ord("\\"): "/", ord("|"): "/", ord(","): "\\,", ord("\n"): "\\\n"})
