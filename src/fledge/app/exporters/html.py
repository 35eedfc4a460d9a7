"""Export a recording as one interactive HTML page that needs no server.

It holds the player, three.js, and the payloads, beams and graphs of the chosen episodes, compressed. Its content security
policy forbids it to load or send anything, so text from an untrusted recording can do no harm.
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

from fledge.app.recordings.episode_payload import frame_graph, list_episodes, pack_beams, pack_episode, stage_key
from fledge.app.recordings.trajectory import stride_of, text
from fledge.app.server.assets import DATA_ID, STATIC, make_page, three_script
from fledge.core.errors import ConfigError
from fledge.storage import Recording
from fledge.storage.disk.durable import write_text
from fledge.tasks.base import Task
from fledge.tasks.view.base import TaskView

MAX_EPISODES = 64
MAX_BYTES = 64 * 2**20  # of payloads and beams in a page, compressed
MAX_GRAPHS = 600  # in a page; each takes some hundredths of a second to compute
GRAPH_S = 1.0  # time between two graphs, longer if there would be more than MAX_GRAPHS


def compressed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def pack_episodes(recording: Recording, task: Task, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the data of a page: the list of its episodes, and their payloads, beams and graphs.

    Episodes that would make the page larger than MAX_BYTES are left out.
    """
    payloads: dict[int, str] = {}
    beams: dict[int, str] = {}
    stages: set[str] = set()
    size = 0
    for number in numbers:
        key = stage_key(recording[number].scene)
        payload = compressed(pack_episode(recording, task, number, with_stage=key not in stages))
        seen = compressed(pack_beams(recording, task, number, 0, recording[number].length))
        size += len(payload) + len(seen)
        if payloads and size > MAX_BYTES:
            break
        payloads[number], beams[number] = payload, seen
        stages |= {key} if key is not None else set()
    listed = list_episodes(recording, task)
    rows = [row for row in listed["episodes"] if row["number"] in payloads]
    listed |= {"episodes": rows, "left_out": len(recording) - len(payloads), "closed": True}
    graphs = pack_graphs(recording, task, list(payloads))
    return {"list": listed, "payloads": payloads, "beams": beams, "graphs": graphs}


def pack_graphs(recording: Recording, task: Task, numbers: Sequence[int]) -> dict[int, str]:
    """Return each episode's graphs as compressed JSON, at most one graph per second; {} if the task has no graphs."""
    if type(task.view).graph is TaskView.graph:
        return {}
    seconds = sum(recording[number].length for number in numbers) * recording.seconds_per_frame
    step = max(1, round(max(GRAPH_S, seconds / MAX_GRAPHS) / recording.seconds_per_frame))
    found = {}
    for number in numbers:
        stride = stride_of(recording, recording[number])
        frames = range(0, -(-recording[number].length // stride), max(1, step // stride))
        graphs = [frame_graph(recording, task, number, frame) for frame in frames]
        data = {"frames": list(frames), "graphs": [None if graph is None else slim(graph) for graph in graphs]}
        found[number] = compressed(json.dumps(data, allow_nan=False, separators=(",", ":")).encode())
    return found


def slim(graph: Any, without: Sequence[str] = ("rings", "fan", "points")) -> Any:
    """Return a graph without the entries `without`, which the player does not draw, and with rounded numbers."""
    if isinstance(graph, dict):
        return {name: slim(value) for name, value in graph.items() if name not in without}
    if isinstance(graph, list | tuple):
        return [slim(value) for value in graph]
    if isinstance(graph, str | bool | None):
        return graph
    value = float(graph)
    return None if not math.isfinite(value) else round(value) if abs(value) >= 100 else round(value, 2)


def export_html(recording: Recording, task: Task, target: Path, episode: int | None = None) -> dict[str, Any]:
    """Write the page of a recording, or of one of its episodes, and return the number of episodes."""
    chosen = recording if episode is None else [recording[episode]]
    numbers = [each.number for each in chosen if each.recorded or episode is not None][:MAX_EPISODES]
    data = pack_episodes(recording, task, numbers)
    if not data["payloads"]:
        raise ConfigError(
            f"{recording.path} holds no frames yet, so there is nothing to show. Try again when frames have been recorded."
        )
    facts = ", ".join(f"{k} {v}" for k, v in data["list"]["facts"].items() if k != "settings")
    body = f'<p class="fl-note fp-facts">{html.escape(facts)}</p>'
    body += f'<fledge-player data-options="{html.escape(json.dumps({"embedded": DATA_ID}))}"></fledge-player>'
    drawing = [task.view.page / "graph.js"] if data["graphs"] and task.view.page is not None else []
    modules = [*drawing, STATIC / "player" / "player.js"]
    write_text(target, make_page(text(recording.path.name), body, data, "player", modules, before=three_script()))
    return {"drawn": len(numbers)}
