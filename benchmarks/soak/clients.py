"""Clients of the browser app in the soak test: what open pages request, over HTTP and WebSocket."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.soak.plan import Plan, Workload

TIMEOUT_S = 60.0
OPEN_S = 15.0  # time that a page stays open
POLL_S = 0.7  # between two requests of a page that shows a run
MATCH_S = 20.0
WHO = "soakclient"


class Clients(Workload):
    """Threads that open pages one after the other, and request what these show."""

    def __init__(self, plan: Plan, base: str) -> None:
        super().__init__(plan, "clients")
        self.base = base

    def work(self) -> None:
        turns: tuple[Callable[[], None], ...] = (self.show_curves, self.show_live, self.show_films, self.play_match)
        threads = [threading.Thread(target=self.repeat, args=(turn,), daemon=True) for turn in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def repeat(self, turn: Callable[[], None]) -> None:
        """Repeat a turn until the end; a failed one is a fault."""
        while not self.plan.stop.wait(0.1):
            try:
                turn()
            except Exception as error:  # whatever a server may do to its clients
                self.plan.fault(f"{turn.__name__}: {type(error).__name__}: {error}")
                self.plan.stop.wait(2.0)

    def ask(self, path: str, body: Any = None, gone: bool = False) -> bytes:
        """Request a path, and return the answer; b"" for an answer 404 if `gone` says that it may have been removed."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"origin": self.base})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 404 or not gone:
                raise OSError(f"{path}: {error.code} {error.read()[:200]!r}") from error
            found = b""
        self.plan.count("requests")
        self.plan.count("bytes received", len(found))
        return found

    def socket(self, path: str) -> Any:
        """Return a WebSocket to a path, as a page of the app would open it."""
        from websockets.sync.client import connect
        from websockets.typing import Origin

        address = self.base.replace("http", "ws", 1) + path
        return connect(address, origin=Origin(self.base), proxy=None, open_timeout=TIMEOUT_S)

    @contextlib.contextmanager
    def page(self, path: str) -> Iterator[str]:
        """Open a page with its WebSocket, as a browser does; yield its HTML."""
        text = self.ask(path).decode()
        known = re.search(r"['\"]client_id['\"]:\s*['\"]([^'\"]+)", text)
        assert known is not None, f"{path} has no client id"
        query = f"client_id={known[1]}&next_message_id=0&implicit_handshake=true&tab_id={WHO}&document_id={known[1]}"
        with self.socket(f"/_nicegui_ws/socket.io/?{query}&EIO=4&transport=websocket") as socket:
            socket.recv(TIMEOUT_S)
            socket.send("40")
            greeting = socket.recv(TIMEOUT_S)
            assert str(greeting).startswith("40"), f"the page's socket was refused: {greeting!r}"
            self.plan.count("pages")
            yield text

    def until_closed(self, pause: float) -> Iterator[int]:
        """Yield 0, 1, 2, ... until the page is closed, with pauses in between."""
        end = time.monotonic() + OPEN_S
        for turn in itertools.count():
            yield turn
            if time.monotonic() > end or self.plan.stop.wait(pause):
                return

    def show_curves(self) -> None:
        """Show the training page of all runs: curves, settings, checkpoints and the saved page."""
        with self.page("/"):
            known: dict[str, dict[str, Any]] = {}
            for turn in self.until_closed(POLL_S):
                for run in json.loads(self.ask("/api/runs"))["runs"]:
                    before = known.get(run["id"], {})
                    path = (
                        f"/api/runs/{run['id']}?generation={before.get('generation', 0)}&start={before.get('next', 0)}"
                    )
                    found = self.ask(path, gone=True)
                    known[run["id"]] = json.loads(found)["curves"] if found else {}
                ids = ",".join(known)
                if turn == 1:
                    self.ask(f"/api/settings?ids={ids}")
                    self.ask(f"/api/save?ids={ids}")
                    for run in known:
                        self.ask(f"/api/checkpoints/{run}")

    def entries(self, page: str, name: str) -> list[str]:
        """Return the ids of the entries whose card on the watch page has a name with `name` in it."""
        cards = re.findall(r"/watch/([0-9a-f]{12})", page)
        return [id for id in dict.fromkeys(cards) if name in json.loads(self.ask(f"/recordings/{id}"))["name"]]

    def show_live(self) -> None:
        """Show the live episodes of the training, as they grow."""
        live = self.entries(self.ask("/watch").decode(), "watched")
        if not live:
            self.plan.stop.wait(2.0)
            return
        with self.page(f"/watch/{live[0]}"):
            known: dict[tuple[str, int], int] = {}
            for _ in self.until_closed(POLL_S):
                told = json.loads(self.ask(f"/recordings/{live[0]}"))
                for row in told["episodes"][-16:]:
                    key, of = (told["generation"], row["number"]), told["generation"]
                    if row["recorded"] > known.get(key, 0):
                        base = f"/recordings/{live[0]}/{row['number']}"
                        self.ask(f"{base}?stage=0&start={known.get(key, 0)}&of={of}", gone=True)
                        self.ask(f"{base}/beams?start={known.get(key, 0)}&stop={row['recorded']}&of={of}", gone=True)
                        known[key] = row["recorded"]
                        self.plan.count("live episodes")

    def show_films(self) -> None:
        """Play all episodes of the recordings, with sensor beams and graphs."""
        page = self.ask("/watch").decode()
        for id in self.entries(page, ".frec"):
            with self.page(f"/watch/{id}"):
                for row in json.loads(self.ask(f"/recordings/{id}"))["episodes"]:
                    for path in ("", f"/beams?start=0&stop={row['recorded']}", f"/graph?frame={row['recorded'] // 2}"):
                        self.ask(f"/recordings/{id}/{row['number']}{path}", gone=True)
                    self.plan.count("films")
                    if self.plan.stop.wait(0.2):
                        return

    def play_match(self) -> None:
        """Watch a match of two scripted policies, and keep its recording."""
        asked = {"blue": "envelope", "red": "crank", "seed": self.plan.counts["matches"]}
        match = json.loads(self.ask("/play/new", asked))["id"]
        self.plan.count("matches")  # at its start, so that a seed that fails does not come again
        with self.page(f"/play/{match}"), self.socket(f"/play/{match}/socket") as socket:
            socket.send(json.dumps({"do": "hello", "who": WHO}))
            self.watch_match(socket)
        (self.plan.place / "new.part").write_bytes(self.ask(f"/play/{match}/fight.frec"))
        (self.plan.place / "new.part").replace(self.plan.place / "fight.frec")

    def watch_match(self, socket: Any) -> None:
        """Watch a match for MATCH_S seconds or until it is over; double its speed, and rewind it once."""
        end = time.monotonic() + MATCH_S
        # at ticks, not after a number of messages: a busy server sends fewer messages with more frames in each
        actions = [(20, {"do": "speed", "to": 2}), (200, {"do": "rewind", "tick": 10, "paused": False})]
        while time.monotonic() < end and not self.plan.stop.is_set():
            message = socket.recv(TIMEOUT_S)
            self.plan.count("bytes received", len(message))
            if isinstance(message, bytes):
                _, tick = struct.unpack_from("<II", message)
                if actions and tick >= actions[0][0]:
                    socket.send(json.dumps(actions.pop(0)[1]))
                continue
            told = json.loads(message)
            if told.get("note"):
                raise OSError(f"the match says: {told['note']}")
            if told["say"] == "state" and told["over"] is not None:
                self.plan.count("matches watched to their end")
                return  # nothing more is sent until a person rewinds or restarts the match
