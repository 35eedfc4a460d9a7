"""The play socket: one browser in one match.

From the page, JSON: {"do": "hello", "who": ...} first, then what `Match.do` understands. To the page, JSON with "say":
    welcome    what never changes: layout of a frame, length of a tick, controls, who can be met
    cut        the past was changed: forget what came after `tick`
    state      who sits where, pause, speed, ending; whenever it changes
    graph      the space-time graph of what is looked at
and frames as bytes: branch and number of the first one (uint32 each), then a row of float32 a frame, little-endian. Pages are
sent what they have not seen yet, as fast as they take it: nothing piles up for a slow one, and one that comes back gets the
whole fight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import struct
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.core.errors import FledgeError

if TYPE_CHECKING:
    from fledge.ui.match import Match

MAX_TEXT = 4096  # letters of a message
MAX_RATE = 300  # messages in a second
POLL_S = 1 / 40
FRAMES_AT_ONCE = 1000
WHO = re.compile(r"[A-Za-z0-9_-]{8,64}")


class Rate:
    """Counts messages; False where too many come in a second."""

    def __init__(self) -> None:
        self.since, self.count = time.monotonic(), 0

    def allows(self) -> bool:
        now = time.monotonic()
        if now - self.since > 1.0:
            self.since, self.count = now, 0
        self.count += 1
        return self.count <= MAX_RATE


async def serve_player(socket: Any, match: Match | None) -> None:
    """Talk to one page until it goes, or breaks the rules."""
    from starlette.websockets import WebSocketDisconnect

    await socket.accept()
    who = None
    try:
        message = await read(socket)
        given = str((message or {}).get("who"))
        if match is None or message is None or message.get("do") != "hello" or not WHO.fullmatch(given):
            await socket.send_text(json.dumps({"say": "gone"}))
            return await socket.close(1008)
        match.enter(given)
        who = given
        sender = asyncio.create_task(Sender(socket, match, who).run())
        try:
            await listen(socket, match, who)
        finally:
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await sender
    except FledgeError as error:
        await socket.send_text(json.dumps({"say": "gone", "note": str(error)}))
        await socket.close(1008)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the page is gone
    finally:
        if match is not None and who is not None:
            match.leave(who)


async def read(socket: Any) -> dict[str, Any] | None:
    """The next message; None if it is none of ours, too long, or no JSON object."""
    text = await socket.receive_text() if hasattr(socket, "receive_text") else ""
    if len(text) > MAX_TEXT:
        return None
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


async def listen(socket: Any, match: Match, who: str) -> None:
    """Do what the page asks for. A page that sends nonsense, or too much, is left."""
    rate = Rate()
    while True:
        message = await read(socket)
        if message is None or not rate.allows():
            return await socket.close(1008)
        if message.get("do") == "hands":
            match.do(who, message)
        else:  # may take a moment: rewinding flies
            await asyncio.to_thread(match.do, who, message)


class Sender:
    """Sends one page what it has not seen."""

    def __init__(self, socket: Any, match: Match, who: str) -> None:
        self.socket, self.match, self.who = socket, match, who
        self.seen = -1  # tick
        self.branch = match.fight.branch
        self.changes = -1
        self.graph: tuple[int, int] | None = None

    async def say(self, what: str, **rest: Any) -> None:
        await self.socket.send_text(json.dumps({"say": what, **rest}, default=float))

    async def run(self) -> None:
        await self.say("welcome", **welcome(self.match))
        while True:
            await self.send_frames()
            await self.send_state()
            await self.send_graph()
            await asyncio.sleep(POLL_S)

    async def send_frames(self) -> None:
        with self.match.lock:
            fight = self.match.fight
            cut = fight.still_holds(self.branch) if fight.branch != self.branch else None
            if cut is not None:
                self.branch, self.seen = fight.branch, min(self.seen, cut)
            first = max(self.seen + 1, fight.first)
            rows = fight.frames[first - fight.first : first - fight.first + FRAMES_AT_ONCE]
            over = fight.over
        if cut is not None:
            await self.say("cut", tick=cut, branch=self.branch)
        if rows:
            head = struct.pack("<II", self.branch, first)
            await self.socket.send_bytes(head + np.stack(rows).astype("<f4").tobytes())
            self.seen = first + len(rows) - 1
        elif over is not None and self.changes < 0:
            self.seen = over.tick

    async def send_state(self) -> None:
        if self.match.changes != self.changes:
            self.changes = self.match.changes
            await self.say("state", **self.match.told(self.who))

    async def send_graph(self) -> None:
        found = self.match.graph_for(self.who)
        if found is not None and (found[0], found[1]) != self.graph:
            self.graph = (found[0], found[1])
            await self.say("graph", tick=found[0], branch=found[1], graph=found[2])


def welcome(match: Match) -> dict[str, Any]:
    """What a page needs to know once."""
    fight, roster = match.fight, match.roster
    return {
        "task": fight.task.name,
        "tick_s": fight.tick_s,
        "layout": [[name, list(shape)] for name, shape in fight.layout.shapes.items()],
        "controls": [control.told() for control in fight.controls],
        "names": roster.names(),
        "starts": roster.starts(),
        "labels": dict(fight.task.labels),
        "words": roster.words,
    }
