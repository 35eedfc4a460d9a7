"""A recording as one page that can be sent to someone: self-contained, interactive, without a server.

It holds the player, three.js, and the films and beams of the chosen episodes, packed (`bundle` makes the file). Its policy
forbids it to load or send anything, so what a stranger's recording says can do nothing but be read.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError
from fledge.storage import Recording
from fledge.storage.disk.durable import write_text
from fledge.tasks.base import Task
from fledge.ui.bundle import DATA_ID, page
from fledge.ui.film import list_films, make_beams, make_film, stage_key
from fledge.ui.reel import text

MODULES = (
    "build", "palette", "film", "source", "stage3d", "actors3d", "crowd3d", "scene3d", "map2d", "figures", "episodes",
    "transport", "live", "meaning", "player",
)  # fmt: skip
"""In the order of who needs whom."""
MAX_EPISODES = 64
MAX_BYTES = 64 * 2**20  # of films, packed
EXPORTS = re.compile(r"export\{([^{}]*)\};\s*(?://# sourceMappingURL=\S*\s*)?$")


def three_path() -> Path:
    """three.js with its controls, as NiceGUI ships it; ConfigError without NiceGUI."""
    spec = find_spec("nicegui")
    path = Path(spec.origin).parent / "elements" / "scene" / "dist" / "index.js" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError("A page needs the extra ui: pip install 'fledge[ui]'.")
    return path


def three_script() -> str:
    """three.js as an object of the page, where the player finds it: a page that was saved imports nothing."""
    source = three_path().read_text(encoding="utf-8")
    found = EXPORTS.search(source)
    assert found is not None, "NiceGUI's three.js has changed its form"
    pairs = (name.split(" as ") for name in found[1].split(","))
    names = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs)
    return f"globalThis.fledgeThree = (() => {{\n{source[: found.start()]}\nreturn {{{names}}};\n}})();\n"


def packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def choose_episodes(recording: Recording, wanted: Sequence[int] | None) -> list[int]:
    """Which episodes go into a page: those that are wanted, else the first ones that have frames."""
    if wanted is not None:
        return [recording[number].number for number in wanted]
    return [episode.number for episode in recording if episode.recorded][:MAX_EPISODES]


def pack_films(recording: Recording, task: Task, numbers: Sequence[int]) -> dict[str, Any]:
    """What a page holds: the list, films and beams, as far as they are not too much."""
    films: dict[int, str] = {}
    beams: dict[int, str] = {}
    stages: set[str | None] = {None}
    size = 0
    for number in numbers:
        key = stage_key(recording[number].scene)
        film = packed(make_film(recording, task, number, 0, key not in stages or key is None))
        seen = packed(make_beams(recording, task, number, 0, recording[number].length))
        if films and size + len(film) + len(seen) > MAX_BYTES:
            break
        films[number], beams[number] = film, seen
        stages.add(key)
        size += len(film) + len(seen)
    told = list_films(recording, task)
    told["episodes"] = [row for row in told["episodes"] if row["number"] in films]
    told["left_out"] = len(recording) - len(films)
    told["closed"] = True
    return {"list": told, "films": films, "beams": beams}


def recording_page(recording: Recording, task: Task, numbers: Sequence[int] | None = None, title: str = "") -> str:
    """The page of a recording."""
    data = pack_films(recording, task, choose_episodes(recording, numbers))
    if not data["films"]:
        raise ConfigError(f"{recording.path} holds no frames (yet): there is nothing to show.")
    facts = ", ".join(f"{k} {v}" for k, v in data["list"]["facts"].items() if k != "settings")
    body = f'<p class="fl-note fp-facts">{html.escape(facts)}</p>'
    body += f'<fledge-player data-options="{html.escape(json.dumps({"embedded": DATA_ID}))}"></fledge-player>'
    parts = [f"player/{name}.js" for name in MODULES]
    name = text(title or recording.path.name)
    return page(name, body, data, parts, ["style.css", "player/player.css"], before=three_script())


def export_page(recording: Recording, task: Task, target: Path, number: int | None = None) -> dict[str, Any]:
    """Write the page of a recording, or of one episode of it; returns its figures."""
    numbers = choose_episodes(recording, None if number is None else [number])
    made = recording_page(recording, task, numbers)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, made)
    return {"drawn": len(numbers), "bytes": target.stat().st_size}
