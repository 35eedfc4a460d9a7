"""The arena: matches by ids that the server made; few at once, and none that nobody cares for any more."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any

from fledge.app.play.match import Match
from fledge.app.play.roster import PERSON, Roster
from fledge.core.errors import ConfigError
from fledge.tasks.registry import find_task

MAX_MATCHES = 8
IDLE_S = 900.0  # after which a match that nobody is in ends
CROWDED_S = 30.0  # the same where there is no room for another


class Arena:
    """All matches of one world.

    Args:
        task: The world's name.
        words: Settings of whoever started the app.
    """

    def __init__(self, task: str = "aircombat", words: Sequence[str] = ()) -> None:
        self.roster = Roster(find_task(task), words)
        if self.roster.task.match.sides != 2:
            raise ConfigError(f"{task} has {self.roster.task.match.sides} side, so there is nobody to play against.")
        self.matches: dict[str, Match] = {}
        self._lock = threading.Lock()

    def begin(self, names: Sequence[str], start: str | None = None, seed: int | None = None) -> str:
        """A new match's id.

        Raises:
            ConfigError: when there are too many, or it cannot begin so.
        """
        with self._lock:
            self._tidy()
            if len(self.matches) >= MAX_MATCHES:
                raise ConfigError(f"{MAX_MATCHES} fights are going on: join one of them, or wait until one ends.")
            match = Match(self.roster, names, start, secrets.randbelow(2**31) if seed is None else seed)
            name = secrets.token_urlsafe(6)
            self.matches[name] = match
            return name

    def _tidy(self) -> None:
        """End matches that nobody is in; sooner when there is no room."""
        limit = CROWDED_S if len(self.matches) >= MAX_MATCHES else IDLE_S
        for name, match in list(self.matches.items()):
            if not match.people and time.monotonic() - match.used > limit:
                self.matches.pop(name).close()

    def listed(self) -> list[dict[str, Any]]:
        """The matches that go on, as plain data."""
        return [
            {
                "id": name,
                "seats": ["a person" if seat.agent is None else seat.name for seat in match.fight.seats],
                "free": any(match.fight.seats[side].name == PERSON for side in match.waiting_for()),
                "people": len(match.people),
                "seconds": round(match.fight.time_s),
                "over": match.fight.over is not None,
            }
            for name, match in list(self.matches.items())
        ]

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            while self.matches:
                self.matches.popitem()[1].close()
