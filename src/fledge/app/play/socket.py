"""The play socket: the connection of one browser to one match.

From the page: JSON {"do": "hello", "who": ...} first, then messages of `Match.do`. To the page: JSON with "say":
    welcome    what never changes: layout of a frame, length of a tick, controls, names of the roster
    cut        the past was changed: drop the frames after `tick`
    state      seats, pause, speed, outcome; whenever it changes
    graph      the task's graph of the moment that is shown
and frames as bytes: branch and tick of the first one (uint32 each), then one float32 row for each frame, little-endian. A
page gets only what it does not have yet, as fast as it can receive it. So nothing queues up for a slow page, and a page that
reconnects gets the whole match.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.core.errors import FledgeError

if TYPE_CHECKING:
    from fledge.app.play.match import Match

MAX_TEXT = 4096  # characters of a message
MAX_RATE = 300  # messages per second
HELLO_S = 10.0  # time within which the first message must come
POLL_S = 1 / 40
LOCK_S = 0.005  # wait for a match's lock: this thread serves all pages, and rewinding holds the lock for longer
FRAMES_AT_ONCE = 1000
WHO = re.compile(r"[A-Za-z0-9_-]{8,64}")


async def serve_player(socket: Any, match: Match | None) -> None:
    """Connect one page to a match until it disconnects or sends an invalid message."""
    from starlette.websockets import WebSocketDisconnect

    await socket.accept()
    who = None
    try:
        message = await asyncio.wait_for(read(socket), HELLO_S)
        given = str((message or {}).get("who"))
        if match is None or message is None or message.get("do") != "hello" or not WHO.fullmatch(given):
            await socket.send_text(said("gone"))
            return await socket.close(1008)
        await asyncio.to_thread(match.enter, given)
        who = given
        sender = asyncio.create_task(Sender(socket, match, who).run())
        try:
            await listen(socket, match, who)
        finally:
            sender.cancel()
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await sender
    except FledgeError as error:
        await socket.send_text(said("gone", note=str(error)))
        await socket.close(1008)
    except TimeoutError:
        await socket.close(1008)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the page was closed
    finally:
        if match is not None and who is not None:
            asyncio.get_running_loop().run_in_executor(None, match.leave, who)  # not awaited: we may be cancelled here


async def read(socket: Any) -> dict[str, Any] | None:
    """Return the next message; None if it is not a JSON object or longer than MAX_TEXT."""
    try:
        text = await socket.receive_text()
        message = json.loads(text) if len(text) <= MAX_TEXT else None
    except (KeyError, ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


async def listen(socket: Any, match: Match, who: str) -> None:
    """Carry out the page's messages; close the socket if one is invalid, or if more than MAX_RATE come in a second."""
    since, count = time.monotonic(), 0
    while True:
        message = await read(socket)
        if time.monotonic() - since > 1.0:
            since, count = time.monotonic(), 0
        count += 1
        if message is None or count > MAX_RATE:
            return await socket.close(1008)
        if message.get("do") == "hands" and match.lock.acquire(timeout=LOCK_S):
            try:
                match.do(who, message)
            finally:
                match.lock.release()
        else:  # may take a moment: rewinding simulates
            await asyncio.to_thread(match.do, who, message)


class Sender:
    """Sends one page all frames, states and graphs that it does not have yet."""

    def __init__(self, socket: Any, match: Match, who: str) -> None:
        self.socket, self.match, self.who = socket, match, who
        self.seen = self.changes = -1  # last tick sent; number of the last state sent
        self.branch = match.fight.branch
        self.graph: tuple[int, int] | None = None

    async def run(self) -> None:
        fight, roster = self.match.fight, self.match.roster
        layout = [[name, list(shape)] for name, shape in fight.layout.shapes.items()]
        controls = [control.told() for control in fight.controls]
        once = {"task": fight.task.name, "tick_s": fight.tick_s, "layout": layout, "controls": controls}
        await self.socket.send_text(said("welcome", **once, names=roster.names(), starts=roster.starts()))
        while True:
            if self.match.lock.acquire(timeout=LOCK_S):
                try:
                    news = list(self.news())
                finally:
                    self.match.lock.release()
                for part in news:
                    await (self.socket.send_text(part) if isinstance(part, str) else self.socket.send_bytes(part))
            await asyncio.sleep(POLL_S)

    def news(self) -> Iterator[str | bytes]:
        """Yield the messages that bring the page up to date."""
        fight = self.match.fight
        if fight.branch != self.branch:
            cut = fight.still_holds(self.branch)
            self.branch, self.seen = fight.branch, min(self.seen, cut)
            yield said("cut", tick=cut, branch=self.branch)
        first = max(self.seen + 1, fight.first)
        rows = fight.frames[first - fight.first : first - fight.first + FRAMES_AT_ONCE]
        if rows:
            self.seen = first + len(rows) - 1
            yield struct.pack("<II", self.branch, first) + np.stack(rows).astype("<f4").tobytes()
        elif fight.over is not None and self.changes < 0:
            self.seen = fight.over.tick
        if self.match.changes != self.changes:
            self.changes = self.match.changes
            yield said("state", **self.match.state(self.who))
        found = self.match.graph_for(self.who)
        if found is not None and found[:2] != self.graph:
            self.graph = found[:2]
            yield said("graph", tick=found[0], branch=found[1], graph=found[2])


def said(what: str, **rest: Any) -> str:
    return json.dumps({"say": what, **rest}, default=float)
