"""The match manager: the matches of a server by id. Their number is limited, and abandoned ones are closed."""

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
DEFAULT_TASK = "aircombat"
IDLE_S = 900.0  # after which a match without people is closed
CROWDED_S = 30.0  # the same when there are too many


class MatchManager:
    """All matches of one task.

    Args:
        task: Name of the task.
        overrides: `env.key=value` settings from the command line.
    """

    def __init__(self, task: str = DEFAULT_TASK, overrides: Sequence[str] = ()) -> None:
        self.roster = Roster(find_task(task), overrides)
        if self.roster.task.match.sides != 2:
            raise ConfigError(
                f"{task} cannot be played: it has {self.roster.task.match.sides} side, and a match needs 2."
            )
        self.matches: dict[str, Match] = {}
        self._lock = threading.Lock()

    def begin(self, names: Sequence[str], start: str | None = None, seed: int | None = None) -> str:
        """Start a match, and return its id.

        Raises:
            ConfigError: There are too many matches, or the names, start or seed are not valid.
        """
        with self._lock:
            self._tidy()
            if len(self.matches) >= MAX_MATCHES:
                raise ConfigError(f"There are {MAX_MATCHES} matches already: join one of them, or wait until one ends.")
            match = Match(self.roster, names, start, secrets.randbelow(2**31) if seed is None else seed)
            name = secrets.token_urlsafe(6)
            self.matches[name] = match
            return name

    def _tidy(self) -> None:
        """Close matches without people, sooner when there are too many."""
        limit = CROWDED_S if len(self.matches) >= MAX_MATCHES else IDLE_S
        for name, match in list(self.matches.items()):
            if not match.people and time.monotonic() - match.used > limit:
                self.matches.pop(name).close()

    def listed(self) -> list[dict[str, Any]]:
        """Return the running matches as plain data."""
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
        """Close all matches."""
        with self._lock:
            while self.matches:
                self.matches.popitem()[1].close()
