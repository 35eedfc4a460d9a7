"""A recording as one page that can be sent to someone: self-contained, interactive, without a server.

It holds the player, three.js, and the films, beams and graphs of the chosen episodes, packed (`bundle` makes the file). Its
policy forbids it to load or send anything, so what a stranger's recording says can do nothing but be read.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fledge.app.episode_packer import text
from fledge.app.episode_payload import list_films, make_beams, make_film, make_graph, stage_key, thinning
from fledge.app.exporters.bundle import DATA_ID, page
from fledge.app.exporters.three import three_script
from fledge.core.errors import ConfigError
from fledge.storage import Recording
from fledge.storage.disk.durable import write_text
from fledge.tasks.base import Task
from fledge.tasks.view.base import TaskView

MODULES = (
    "build", "palette", "film", "source", "stage3d", "actors3d", "crowd3d", "scene3d", "map2d", "figures", "episodes",
    "transport", "live",
)  # fmt: skip
PARTS = (
    *(f"player/{name}.js" for name in MODULES),
    "duel/paper.js",
    "duel/graph.js",
    "player/meaning.js",
    "player/player.js",
)
"""In the order of who needs whom."""
MAX_EPISODES = 64
MAX_BYTES = 64 * 2**20  # of films, packed
MAX_GRAPHS = 600  # in a page, of all its episodes; each takes some hundredths of a second to make
GRAPH_S = 1.0  # from one to the next, where there are not too many


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
    return {"list": told, "films": films, "beams": beams, "graphs": pack_graphs(recording, task, list(films))}


def pack_graphs(recording: Recording, task: Task, numbers: Sequence[int]) -> dict[int, str]:
    """What moments of the episodes mean, where the task says so: one a second, fewer where that would be too many."""
    if type(task.view).graph is TaskView.graph:
        return {}
    seconds = sum(recording[number].length for number in numbers) * recording.seconds_per_frame
    step = max(1, round(max(GRAPH_S, seconds / MAX_GRAPHS) / recording.seconds_per_frame))
    found = {}
    for number in numbers:
        _, stride = thinning(recording, recording[number])
        frames = range(0, -(-recording[number].length // stride), max(1, step // stride))
        graphs = [make_graph(recording, task, number, frame) for frame in frames]
        data = {"frames": list(frames), "graphs": [None if graph is None else slim(graph) for graph in graphs]}
        found[number] = packed(json.dumps(data, allow_nan=False, separators=(",", ":")).encode())
    return found


def slim(graph: Any, without: Sequence[str] = ("rings", "fan", "points")) -> Any:
    """A graph as far as it is drawn beside a map, to the metre and the hundredth."""
    if isinstance(graph, dict):
        return {name: slim(value) for name, value in graph.items() if name not in without}
    if isinstance(graph, list | tuple):
        return [slim(value) for value in graph]
    if isinstance(graph, str | bool | None):
        return graph
    value = float(graph)
    return None if not math.isfinite(value) else round(value) if abs(value) >= 100 else round(value, 2)


def recording_page(recording: Recording, task: Task, numbers: Sequence[int] | None = None, title: str = "") -> str:
    """The page of a recording."""
    data = pack_films(recording, task, choose_episodes(recording, numbers))
    if not data["films"]:
        raise ConfigError(f"{recording.path} holds no frames (yet): there is nothing to show.")
    facts = ", ".join(f"{k} {v}" for k, v in data["list"]["facts"].items() if k != "settings")
    body = f'<p class="fl-note fp-facts">{html.escape(facts)}</p>'
    body += f'<fledge-player data-options="{html.escape(json.dumps({"embedded": DATA_ID}))}"></fledge-player>'
    name = text(title or recording.path.name)
    return page(name, body, data, PARTS, ["style.css", "player/player.css"], before=three_script())


def export_page(recording: Recording, task: Task, target: Path, number: int | None = None) -> dict[str, Any]:
    """Write the page of a recording, or of one episode of it; returns its figures."""
    numbers = choose_episodes(recording, None if number is None else [number])
    made = recording_page(recording, task, numbers)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, made)
    return {"drawn": len(numbers), "bytes": target.stat().st_size}
