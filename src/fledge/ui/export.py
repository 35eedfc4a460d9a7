"""A recording as one page that can be sent to someone: self-contained, interactive, without a server.

It holds the player (our modules, joined into one), three.js, the films and beams of the chosen episodes, packed. A page's policy
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
from fledge.ui.film import list_films, make_beams, make_film, stage_key, text

HERE = Path(__file__).parent
MODULES = (
    "build", "palette", "film", "source", "stage3d", "actors3d", "crowd3d", "scene3d", "map2d", "figures", "episodes",
    "transport", "live", "player",
)  # fmt: skip
"""In the order of who needs whom; each has names of its own."""
MAX_EPISODES = 64
MAX_BYTES = 64 * 2**20  # of films, packed
POLICY = "default-src 'none'; script-src 'unsafe-inline' data: blob:; style-src 'unsafe-inline'; img-src data: blob:"
IMPORT = re.compile(r"^import .*? from \"\./.*?\";\n", re.MULTILINE | re.DOTALL)


def three_path() -> Path:
    """three.js with its controls, as NiceGUI ships it; ConfigError without NiceGUI."""
    spec = find_spec("nicegui")
    path = Path(spec.origin).parent / "elements" / "scene" / "dist" / "index.js" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError("A page needs the extra ui: pip install 'fledge[ui]'.")
    return path


def joined_modules() -> str:
    """The player as one module."""
    sources = [(HERE / "player" / f"{name}.js").read_text() for name in MODULES]
    return "\n".join(IMPORT.sub("", source).replace("\nexport ", "\n") for source in sources)


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
    three = "data:text/javascript;base64," + base64.b64encode(three_path().read_bytes()).decode()
    told = {"embedded": "films", "three": three}
    style = (HERE / "style.css").read_text() + (HERE / "player" / "player.css").read_text()
    name = html.escape(text(title or recording.path.name))
    facts = ", ".join(f"{k} {v}" for k, v in data["list"]["facts"].items() if k != "settings")
    return PAGE.format(
        policy=POLICY,
        title=name,
        facts=html.escape(facts),
        style=style,
        films=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        script=joined_modules(),
        options=html.escape(json.dumps(told), quote=True),
    )


def export_page(recording: Recording, task: Task, target: Path, number: int | None = None) -> dict[str, Any]:
    """Write the page of a recording, or of one episode of it; returns its figures."""
    numbers = choose_episodes(recording, None if number is None else [number])
    page = recording_page(recording, task, numbers)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, page)
    return {"drawn": len(numbers), "bytes": target.stat().st_size}


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
.fp-saved {{ display: flex; gap: 0.8rem; align-items: baseline; flex-wrap: wrap; padding: 0.6rem 1rem; height: 3rem; box-sizing: border-box; overflow: hidden; }}
.fp-saved h1 {{ font-size: 1rem; line-height: 1.4; margin: 0; font-weight: 650; }}
</style>
<script>
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.body.classList.toggle("body--dark", dark.matches);
  dark.addEventListener("change", follow);
  addEventListener("DOMContentLoaded", follow);
</script>
</head>
<body>
<header class="fp-saved"><h1>{title}</h1><span class="fl-note">{facts}</span></header>
<main class="fl-main"><fledge-player data-options="{options}"></fledge-player></main>
<script type="application/json" id="films">{films}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""
