"""Episodes as Tacview ACMI 2.2, the text format that people of this field open (tacview.net/documentation/acmi).

    FileType=text/acmi/tacview                          the two lines that every file begins with
    FileVersion=2.2
    0,ReferenceTime=2000-01-01T00:00:00Z                properties of the whole, object 0
    #12.5                                               from here on it is 12.5 s later
    3,T=0.0123|0.0456|5000|0|0|90|1365|5042|90,...      an object, by a hexadecimal number, with what is new about it
    -3                                                  it is gone
    0,Event=Destroyed|3|                                what happened

Contract
    `T` is longitude | latitude | altitude | roll | pitch | yaw | u | v | heading (degrees, metres; yaw and heading clockwise
    from north; u, v: our own x and y), or longitude | latitude | altitude | u | v of what has no heading. Metres become
    degrees by the ellipsoid's (WGS 84) two radii of curvature at the reference point: exact there, and at the
    equator 80 km away to 3 m; in high latitudes less, as meridians draw together (u and v are exact everywhere). The
    default, on the equator off Africa, has sea below and no mountains. A world without altitude flies at `altitude_m`.
    Text is escaped: a backslash before commas and line ends. What happened to an object is said before it is removed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    path: str | Path,
    episode: int = 0,
    reference: tuple[float, float] = REFERENCE,
    altitude_m: float = ALTITUDE_M,
) -> dict[str, int | float | str]:
    """Write one episode of a recording as an ACMI file, and return what is in it.

    Args:
        task: The task of the recording, which knows what its frames mean.
        reference: Longitude and latitude of the world's origin, degrees.
        altitude_m: Where things of a world without altitude fly.
    """
    track, flown = Trajectory(**recording.track(episode)), recording[episode]
    told = track.frames.get("time_s")  # of a world whose decisions are not all equally long
    times = flown.times() if told is None or told.ndim != 1 else told.astype(np.float64)
    objects = task.view.objects(track)
    if not objects:
        raise InputError(f"{recording.path} holds no positions ({', '.join(recording.fields)}): nothing to show there.")
    title = f"{recording.task}: episode {flown.facts.get('episode', episode)}, {track.outcome}"
    text = "".join(acmi_lines(objects, times, title, recording.seconds_per_frame, reference, altitude_m))
    write_text(path, text)
    return {"episode": episode, "outcome": track.outcome, "objects": len(objects), "frames": len(times),
            "seconds": round(float(times[-1]) if len(times) else 0.0, 3), "bytes": len(text.encode())}  # fmt: skip


@dataclass
class _Shown:
    """One stay of an object: from frame `first` until before `last`."""

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
    """The lines of a file, of things with a frame at each of these times, s."""
    lon, lat = reference
    if not -180 <= lon <= 180 or not -85 <= lat <= 85:
        raise InputError(f"the reference is {lon}, {lat}, but must be a longitude up to 180 and a latitude up to 85.")
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
                lines += _farewell(stay, over=k == len(times))
            elif stay.first == k:
                lines.append(f"{stay.id},T={rows[stay.id][k]},{_about(stay)}\n")
            elif stay.first < k < stay.last and len(stay.thing.pos) > 1:
                lines.append(f"{stay.id},T={rows[stay.id][k]}\n")
        if k == len(times):
            lines.insert(0, f"0,Event=Bookmark|{escape(title)}\n")
        if lines:
            yield f"#{times[k] if k < len(times) else end:.3f}\n"
            yield from lines


def _stays(objects: Sequence[SceneObject], count: int) -> list[_Shown]:
    """Every stay of every object, each with a number of its own; a weapon knows which stay launched it."""
    stays: list[_Shown] = []
    of: dict[int, list[_Shown]] = {}
    for k, thing in enumerate(objects):
        there = np.ones(count, bool) if thing.present is None else np.asarray(thing.present, bool)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
        of[k] = []
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            owners = of.get(thing.parent, []) if thing.parent is not None else []
            parent = next((owner.id for owner in reversed(owners) if owner.first <= first), None)
            of[k].append(_Shown(f"{len(stays) + 1:x}", thing, first, last, parent))
            stays.append(of[k][-1])
    return stays


def _about(stay: _Shown) -> str:
    thing = stay.thing
    told = {"Name": escape(thing.name), "Type": TYPES[thing.kind], "Color": thing.colour.capitalize()}
    told |= {"Coalition": COALITIONS[thing.colour]} if thing.colour in COALITIONS else {}
    told |= {"Parent": stay.parent} if stay.parent else {}
    return ",".join(f"{key}={value}" for key, value in told.items())


def _farewell(stay: _Shown, over: bool) -> list[str]:
    """What happened to an object that is gone. When the episode is over all are, and the task says which were destroyed."""
    thing, event = stay.thing, f"LeftArea|{stay.id}|"
    if thing.kind == "missile" and not over:
        source = f"SourceId:{stay.parent}|" if stay.parent else ""
        event = f"Timeout|{source}AmmoType:{escape(thing.name)}|AmmoCount:1"
    elif thing.destroyed if over else thing.kind in ("aircraft", "drone"):
        event = f"Destroyed|{stay.id}|"
    return [f"0,Event={event}\n", f"-{stay.id}\n"]


def _rows(thing: SceneObject, count: int, lat_deg: float, altitude_m: float) -> list[str]:
    """The value of T at each frame."""
    pos = np.broadcast_to(np.asarray(thing.pos, np.float64), (count, thing.pos.shape[-1]))
    x, y = pos[:, 0], pos[:, 1]
    z = pos[:, 2] if pos.shape[1] > 2 else np.full(count, altitude_m)
    sin = math.sin(math.radians(lat_deg))
    north = _A * (1 - _E2) / (1 - _E2 * sin * sin) ** 1.5  # radius of curvature along the meridian
    east = _A / math.sqrt(1 - _E2 * sin * sin) * math.cos(math.radians(lat_deg))
    lon, lat = np.degrees(x / east), np.degrees(y / north)
    if thing.heading is None:
        return [f"{o:.7f}|{a:.7f}|{h:.2f}|{u:.2f}|{v:.2f}" for o, a, h, u, v in zip(lon, lat, z, x, y, strict=True)]
    yaw = (90.0 - np.degrees(np.broadcast_to(np.asarray(thing.heading, np.float64), count))) % 360.0
    return [
        f"{o:.7f}|{a:.7f}|{h:.2f}|0|0|{w:.2f}|{u:.2f}|{v:.2f}|{w:.2f}"
        for o, a, h, w, u, v in zip(lon, lat, z, yaw, x, y, strict=True)
    ]


def escape(text: str) -> str:
    """Text as a value: commas and line ends behind a backslash; | would begin the next part of an event, and what cannot be
    printed says nothing."""
    shown = "".join(char if char.isprintable() or char == "\n" else " " for char in text.replace("\r\n", "\n"))
    plain = shown.replace("\\", "/").replace("|", "/")
    return plain.replace(",", "\\,").replace("\n", "\\\n")
