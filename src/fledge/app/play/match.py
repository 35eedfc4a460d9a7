"""A match: one fight on the server, and the people who fly or watch it in their browsers.

    match = Match(roster, ["you", "crank"], start="head_on", seed=7)
    match.enter("browser 1")                              a person joins, and takes the first empty seat
    match.do("browser 1", {"do": "hands", "rudder": 1})   a person's action
    match.leave("browser 1")                              the seat stays reserved for a minute, and the fight waits

One thread simulates the fight in real time, and another computes the task's graph a few times a second while people are
connected. Nothing is sent from here: `socket.py` polls, so a slow page delays no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fledge.app.play.fight_state import Seat
from fledge.app.play.roster import MAX_SEED, PERSON, Roster
from fledge.app.play.session import Fight
from fledge.core.errors import ConfigError, FledgeError

logger = logging.getLogger("fledge.app")
GRAPH_S = 0.15  # least time between two graphs
RESERVED_S = 60.0  # time for which the seat of a person who left is kept
MAX_PEOPLE = 16


class Match:
    """One fight that people can join, fly and watch.

    Args:
        roster: The available pilots and policies.
        names: A name on the roster for each side; "you" is an empty seat for a person.
        start: One of `roster.starts()`.
        seed: Seed of the initial state.
    """

    def __init__(self, roster: Roster, names: Sequence[str], start: str | None = None, seed: int = 0) -> None:
        self.roster, self.start = roster, start
        self.fight: Fight = roster.begin(names, start, seed)
        self.lock = threading.RLock()
        self.people: dict[str, int] = {}  # number of connections by person
        self.owners: list[str | None] = [None] * len(names)
        self.left: dict[str, float] = {}  # when a person left
        self.looking: dict[str, int] = {}  # tick that a person looks at; people who are not listed look at the present
        self.changes = 0
        """Incremented whenever `state` changes."""
        self.note = ""
        self.graphs: dict[int, tuple[int, Any]] = {}  # tick -> branch, graph
        self.used = time.monotonic()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(part, pause), daemon=True, name=f"fledge-{name}")
            for name, part, pause in (("fight", self._fly, 0.0), ("graph", self._draw, GRAPH_S))
        ]
        self._before = time.monotonic()
        for thread in self._threads:
            thread.start()

    def close_if_idle(self, seconds: float) -> bool:
        """Close the match if no person is connected and the last action is `seconds` ago; return whether it was closed."""
        with self.lock:
            if self.people or time.monotonic() - self.used <= seconds:
                return False
            self._closed.set()  # from here on no person can enter
        self.close()
        return True

    def close(self) -> None:
        """Stop the threads and close the env."""
        self._closed.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10)
        with self.lock:
            self.fight.close()

    # ---- people ------------------------------------------------------------------------------------------------------

    def enter(self, who: str) -> None:
        """Connect a person, who gets their former seat or the first empty one.

        Raises:
            ConfigError: The match is full, or was closed.
        """
        with self.lock:
            if self._closed.is_set():
                raise ConfigError("This match was closed because no person was in it. Start another one.")
            if who not in self.people and len(self.people) >= MAX_PEOPLE:
                raise ConfigError(f"This match is full, with {MAX_PEOPLE} people: start another one.")
            self.people[who] = self.people.get(who, 0) + 1
            self._free_seats()
            free = [side for side in self.waiting_for() if self.owners[side] is None]
            if who not in self.owners and free:
                self.owners[free[0]] = who
            self._changed()

    def leave(self, who: str) -> None:
        """Disconnect a person; their seat stays reserved for `RESERVED_S` seconds."""
        with self.lock:
            self.people[who] = self.people.get(who, 1) - 1
            if self.people[who] <= 0:
                del self.people[who]
                self.looking.pop(who, None)
                self.left[who] = time.monotonic()
            self._changed()

    def _free_seats(self) -> None:
        """Free the seats of people who left more than `RESERVED_S` seconds ago."""
        gone = time.monotonic() - RESERVED_S
        self.left = {who: when for who, when in self.left.items() if when > gone}
        self.owners = [who if who in self.people or who in self.left else None for who in self.owners]

    def waiting_for(self) -> list[int]:
        """Return the numbers of the sides without a pilot: their seat is empty, or its person is not connected."""
        owned = zip(self.fight.seats, self.owners, strict=True)
        return [side for side, (seat, who) in enumerate(owned) if seat.agent is None and who not in self.people]

    def _changed(self, note: str = "") -> None:
        self.note = note
        self.changes += 1
        self.used = time.monotonic()

    # ---- actions -------------------------------------------------------------------------------------------------------

    def do(self, who: str, message: Mapping[str, Any]) -> None:
        """Carry out a person's action. An error is shown as "note" in `state`; unknown actions are ignored."""
        verbs: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
            "hands": self._hands, "look": self._look_at, "pause": self._pause, "speed": self._set_speed, "step": self._step,
            "rewind": self._rewind, "restart": self._restart, "take": self._take, "give": self._give,
        }  # fmt: skip
        verb = verbs.get(str(message.get("do")))
        if verb is None:
            return
        with self.lock:
            if self._closed.is_set():
                return
            if verb == self._hands:
                return verb(who, message)
            try:
                note = ""
                flying = {owner for owner in self.owners if owner in self.people}
                if verb not in (self._look_at, self._take) and flying and who not in flying:
                    raise ConfigError("Only people who fly can do this, and you are watching: take a seat first.")
                verb(who, message)
            except FledgeError as error:
                note = str(error)
            if verb != self._look_at or note:
                self._changed(note)

    def _hands(self, who: str, message: Mapping[str, Any]) -> None:
        for side, owner in enumerate(self.owners):
            if owner == who and self.fight.seats[side].agent is None:
                self.fight.hands[side].put(message)

    def _look_at(self, who: str, message: Mapping[str, Any]) -> None:
        if message.get("tick") is None:
            self.looking.pop(who, None)
        else:
            self.looking[who] = _whole(message, "tick")

    def _pause(self, who: str, message: Mapping[str, Any]) -> None:
        self.fight.paused = message.get("on") is not False

    def _set_speed(self, who: str, message: Mapping[str, Any]) -> None:
        speed = message.get("to")
        if not isinstance(speed, int | float) or isinstance(speed, bool) or speed != speed:
            raise ConfigError(f"The speed is {speed!r:.99}, but must be a number, such as 1 for real time.")
        self.fight.set_speed(speed)

    def _step(self, who: str, message: Mapping[str, Any]) -> None:
        self.fight.paused = True
        if not self.waiting_for():
            self.fight.step()

    def _rewind(self, who: str, message: Mapping[str, Any]) -> None:
        """Rewind the fight to a tick of its history; the present pilots continue from there."""
        before = list(self.fight.seats)
        self.fight.rewind(_whole(message, "tick"))
        self.looking.clear()
        for side, seat in enumerate(before):
            if seat is not self.fight.seats[side]:
                self.fight.sit(side, seat)
        self.fight.paused = message.get("paused") is not False

    def _restart(self, who: str, message: Mapping[str, Any]) -> None:
        start, cfg = message.get("start"), None
        if start is not None and start != self.start:
            if not isinstance(start, str):
                raise ConfigError(
                    f"start={start!r:.99} must be the name of a start position. Choose one that the page lists."
                )
            agents = [None if seat.agent is None else self.roster.load(seat.name) for seat in self.fight.seats]
            cfg = self.roster.env_config(agents, start)
        self.fight.restart(cfg, None if message.get("seed") is None else _whole(message, "seed", MAX_SEED))
        self.start = start if start is not None else self.start
        self.looking.clear()
        self.fight.paused = False

    def _take(self, who: str, message: Mapping[str, Any]) -> None:
        """Give a person a seat that no other person has; if this person had the other seat, the two pilots swap seats."""
        side = _whole(message, "seat", len(self.owners) - 1)
        self._free_seats()
        owner, seat = self.owners[side], self.fight.seats[side]
        if owner == who:
            return
        if seat.agent is None and owner is not None:
            raise ConfigError("Another person has this seat: ask them to leave it.")
        for other, mine in enumerate(self.owners):
            if mine == who:
                self.owners[other] = None
                self.fight.sit(other, seat)
        self.owners[side] = who
        self.fight.sit(side, Seat(PERSON))

    def _give(self, who: str, message: Mapping[str, Any]) -> None:
        """Give a seat to an agent, or empty it for another person."""
        side = _whole(message, "seat", len(self.owners) - 1)
        if self.owners[side] not in (None, who) and self.owners[side] in self.people:
            raise ConfigError("Another person has this seat: ask them to leave it.")
        self.fight.sit(side, self.roster.seat(str(message.get("to"))))
        self.owners[side] = None

    # ---- state ---------------------------------------------------------------------------------------------------------

    def state(self, who: str) -> dict[str, Any]:
        """Return everything that a person's page shows, except the frames, as JSON-able values."""
        with self.lock:
            fight = self.fight
            seats = [
                {
                    "name": seat.name,
                    "person": seat.agent is None,
                    "yours": seat.agent is None and owner == who,
                    "here": seat.agent is not None or owner in self.people,
                }
                for seat, owner in zip(fight.seats, self.owners, strict=True)
            ]
            shown = ("paused", "speed", "tick", "first", "branch", "seed", "scene")
            return {
                **{name: getattr(fight, name) for name in shown},
                "seats": seats,
                "waiting": self.waiting_for(),
                "over": None if fight.over is None else asdict(fight.over),
                "start": self.start,
                "people": len(self.people),
                "note": self.note,
            }

    def graph_for(self, who: str) -> tuple[int, int, Any] | None:
        """Return the tick that a person looks at, its branch (see `Fight.branch`) and its graph; None if not computed yet."""
        with self.lock:
            wanted = self.looking.get(who)
            if wanted is None:
                wanted = max((t for t, g in self.graphs.items() if g[0] == self.fight.branch), default=-1)
            found = self.graphs.get(wanted)
            return None if found is None or found[0] != self.fight.branch else (wanted, *found)

    # ---- threads -------------------------------------------------------------------------------------------------------

    def _run(self, part: Callable[[], None], pause: float) -> None:
        while not self._closed.is_set():
            try:
                part()
            except Exception as error:  # the page shows it
                logger.exception("a match stopped")
                with self.lock:
                    self.fight.paused = True
                    self._changed(f"The match stopped: {error}")
                self._closed.wait(1.0)
            self._closed.wait(pause)

    def _fly(self) -> None:
        now = time.monotonic()
        with self.lock:
            passed, self._before = now - self._before, now
            was_over = self.fight.over is not None
            if not self.waiting_for():
                self.fight.advance(passed)
            if (self.fight.over is not None) != was_over:
                self._changed()
            wait = self.fight.tick_s / max(self.fight.speed, 1.0)
            idle = self.fight.paused or self.fight.over is not None or not self.people
        self._closed.wait(min(0.1 if idle else 0.5 * wait, 0.1))

    def _draw(self) -> None:
        """Compute the graphs of the ticks that people look at."""
        with self.lock:
            if not self.people:
                return
            fight, branch = self.fight, self.fight.branch
            last = fight.first + len(fight.frames) - 1
            self.looking = {who: min(max(tick, fight.first), last) for who, tick in self.looking.items()}
            wanted = {*self.looking.values(), *([last] if len(self.looking) < len(self.people) else [])}
            frames = {t: fight.frame_at(t) for t in wanted if self.graphs.get(t, (None,))[0] != branch}
        for tick, frame in frames.items():
            try:
                graph = fight.task.view.graph(fight.cfg, frame)
            except FledgeError:
                graph = None
            with self.lock:
                self.graphs[tick] = (branch, graph)
                live = {*self.looking.values(), max(t for t, g in self.graphs.items() if g[0] == branch)}
                self.graphs = {t: g for t, g in self.graphs.items() if g[0] == branch and (t in live or t == tick)}


def _whole(message: Mapping[str, Any], key: str, most: int = 2**31) -> int:
    """Return the whole number under `key` in a message; raise ConfigError unless it is between 0 and `most`."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigError(f"The {key} is {value!r:.99}, but must be a whole number between 0 and {most}.")
    return value
