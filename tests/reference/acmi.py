"""A strict reader of Tacview's ACMI 2.2 text, written from its public description alone (tacview.net/documentation/acmi).

It refuses what Tacview would silently repair, so that a file which passes is one that every reader takes.
"""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass, field

CLASSES = {"Air", "Ground", "Sea", "Weapon", "Sensor", "Navaid", "Misc"}
ATTRIBUTES = {"Static", "Heavy", "Medium", "Light", "Minor"}
BASIC = {
    "FixedWing", "Rotorcraft", "Armor", "AntiAircraft", "Vehicle", "Watercraft", "Human", "Biologic", "Missile", "Rocket",
    "Bomb", "Torpedo", "Projectile", "Beam", "Decoy", "Building", "Bullseye", "Waypoint",
}  # fmt: skip
COLOURS = {"Red", "Orange", "Green", "Blue", "Violet"}
GLOBAL_TEXT = {"DataSource", "DataRecorder", "Author", "Title", "Category", "Briefing", "Debriefing", "Comments"}
ABOUT_ONE = {"Destroyed", "LeftArea", "TakenOff", "Landed"}
TIMEOUT_KEYS = {"SourceId", "AmmoType", "AmmoCount", "Bullseye", "TargetId", "IntendedTarget", "Outcome"}
COORDINATES = {
    3: ("lon", "lat", "alt"),
    5: ("lon", "lat", "alt", "u", "v"),
    6: ("lon", "lat", "alt", "roll", "pitch", "yaw"),
    9: ("lon", "lat", "alt", "roll", "pitch", "yaw", "u", "v", "heading"),
}


class AcmiError(Exception):
    """A file that breaks the description."""


@dataclass
class Thing:
    properties: dict[str, str] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)  # with "t", s
    gone_at: float | None = None


@dataclass
class Acmi:
    properties: dict[str, str] = field(default_factory=dict)
    things: dict[int, Thing] = field(default_factory=dict)
    events: list[tuple[float, str, list[str]]] = field(default_factory=list)  # time, kind, what follows


def need(condition: object, what: str) -> None:
    if not condition:
        raise AcmiError(what)


def logical_lines(text: str) -> list[list[str]]:
    """Lines as lists of values: a backslash takes the meaning of a separator from the comma or line end behind it."""
    lines, values, value, escaped = [], [], "", False
    for char in text:
        if escaped:
            need(char in ",\n", f"a backslash before {char!r}")
            value, escaped = value + char, False
        elif char == "\\":
            escaped = True
        elif char in ",\n":
            values.append(value)
            value = ""
            if char == "\n":
                lines.append(values)
                values = []
        else:
            value += char
    need(not escaped and not value and not values, "the last line has no end")
    return lines


def number(text: str) -> float:
    need(re.fullmatch(r"-?\d+(\.\d+)?", text), f"{text!r} is no number")
    return float(text)


def identity(text: str) -> int:
    need(re.fullmatch(r"0|[1-9a-fA-F][0-9a-fA-F]{0,15}", text), f"{text!r} is no hexadecimal number of an object")
    return int(text, 16)


def parse(data: bytes) -> Acmi:
    lines = logical_lines(data.decode("utf-8").removeprefix("\ufeff"))
    need(lines[:2] == [["FileType=text/acmi/tacview"], ["FileVersion=2.2"]], "the two first lines are others")
    found, now = Acmi(), None
    for values in lines[2:]:
        first = values[0]
        need(first, "an empty line")
        if first.startswith("//"):
            continue
        if first.startswith("#"):
            need(len(values) == 1, "something follows a time")
            later = number(first[1:])
            need(later >= 0 and (now is None or later > now), f"time goes from {now} to {later}")
            now = later
        elif first.startswith("-"):
            thing = alive(found, first[1:])
            need(len(values) == 1 and now is not None, "a removal says more, or when?")
            thing.gone_at = now
        elif identity(first) == 0:
            need(len(values) > 1, "object 0 without a property")
            for text in values[1:]:
                take_global(found, text, now)
        else:
            need(now is not None and len(values) > 1, f"object {first} has no time or no property")
            take_object(found, identity(first), values[1:], float(now or 0.0))
    return found


def alive(found: Acmi, text: str) -> Thing:
    thing = found.things.get(identity(text))
    need(thing is not None and thing.gone_at is None, f"object {text} is not there")
    assert thing is not None
    return thing


def take_global(found: Acmi, text: str, now: float | None) -> None:
    name, sign, value = text.partition("=")
    need(sign, f"{text!r} is no property")
    if name == "Event":
        need(now is not None, "an event without a time")
        take_event(found, value, float(now or 0.0))
        return
    need(now is None, f"{name} is set after the first frame")
    if name in ("ReferenceTime", "RecordingTime"):
        datetime.datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ")
    elif name in ("ReferenceLongitude", "ReferenceLatitude"):
        need(abs(number(value)) <= (180 if name.endswith("ongitude") else 90), f"{name} is {value}")
    else:
        need(name in GLOBAL_TEXT, f"{name} is no property of object 0")
    need(name not in found.properties, f"{name} is set twice")
    found.properties[name] = value


def take_event(found: Acmi, value: str, now: float) -> None:
    kind, *parts = value.split("|")
    if kind in ABOUT_ONE:
        need(len(parts) == 2, f"{kind} is not about one object and a text")
        alive(found, parts[0])
    elif kind == "Timeout":
        told = dict(part.split(":", 1) for part in parts)
        need(told.keys() <= TIMEOUT_KEYS, f"Timeout says {sorted(told)}")
        need("SourceId" not in told or identity(told["SourceId"]) in found.things, "nobody knows the shooter")
    else:
        need(kind in ("Bookmark", "Message") and parts and parts[-1], f"{kind} is no event, or says nothing")
    found.events.append((now, kind, parts))


def take_object(found: Acmi, key: int, values: list[str], now: float) -> None:
    new = key not in found.things
    thing = found.things.setdefault(key, Thing())
    need(thing.gone_at is None, f"object {key:x} comes back under its old number")
    told = [value.partition("=") for value in values]
    need(all(sign for _, sign, _ in told), f"{values} are no properties")
    need(len({name for name, _, _ in told}) == len(told), "a property twice in a line")
    for name, _, value in told:
        if name == "T":
            parts = value.split("|")
            need(len(parts) in COORDINATES, f"T has {len(parts)} parts")
            sample = {part: number(text) for part, text in zip(COORDINATES[len(parts)], parts, strict=True)}
            need(abs(sample["lon"]) <= 180 and abs(sample["lat"]) <= 90, f"T is {value}")
            need(not thing.samples or thing.samples[-1]["t"] < now, "two places at once")
            thing.samples.append({"t": now, **sample})
            continue
        need(re.fullmatch(r"[A-Z][A-Za-z0-9]*", name), f"{name!r} is no name of a property")
        if name == "Type":
            tags = value.split("+")
            need(tags[0] in CLASSES and set(tags[1:]) <= ATTRIBUTES | BASIC, f"Type is {value}")
        need(name != "Color" or value in COLOURS, f"Color is {value}")
        if name == "Parent":
            need(identity(value) in found.things, f"nobody knows parent {value}")
        thing.properties[name] = value
    if new:
        need(
            thing.samples and {"Name", "Type"} <= thing.properties.keys(),
            f"object {key:x} appears without T, Name, Type",
        )


# ---- the Earth ---------------------------------------------------------------------------------------------------------


def earth_centred(lon: float, lat: float, alt: float) -> tuple[float, float, float]:
    """Where a point is, m, from its WGS 84 coordinates in degrees."""
    a, f = 6378137.0, 1 / 298.257223563
    e2 = f * (2 - f)
    lon, lat = math.radians(lon), math.radians(lat)
    n = a / math.sqrt(1 - e2 * math.sin(lat) ** 2)
    flat = (n + alt) * math.cos(lat)
    return flat * math.cos(lon), flat * math.sin(lon), (n * (1 - e2) + alt) * math.sin(lat)


def metres_per_degree(lon: float, lat: float) -> tuple[float, float]:
    """Along the parallel and along the meridian, at sea level, by going a little way."""
    step = 1e-4
    ways = [((lon - step, lat), (lon + step, lat)), ((lon, lat - step), (lon, lat + step))]
    east, north = (math.dist(earth_centred(*a, 0.0), earth_centred(*b, 0.0)) / (2 * step) for a, b in ways)
    return east, north
