"""The match manager: the matches of a server by id. Their number is limited, and abandoned ones are closed.

The arguments of `fledge play` are turned into a match manager and the link to a match:
    fledge play aircombat opponent=crank            you fly blue
    fledge play aircombat blue=runs/duel red=envelope seed=7 start=head_on env.missile.carried=2
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from fledge.app.play.match import Match
from fledge.app.play.roster import MAX_SEED, PERSON, Roster
from fledge.core.errors import ConfigError
from fledge.tasks.registry import find_task

MAX_MATCHES = 8
DEFAULT_TASK = "aircombat"
KEYS = ("blue", "red", "opponent", "start", "seed")  # arguments that are not settings
IDLE_S = 900.0  # a match without people is closed after this time
CROWDED_S = 30.0  # the same if there are MAX_MATCHES matches


class MatchManager:
    """Starts, lists and closes the matches of one task.

    Args:
        task: Name of the task.
        overrides: `env.key=value` settings from the command line.
    """

    def __init__(self, task: str = DEFAULT_TASK, overrides: Sequence[str] = ()) -> None:
        self.roster = Roster(find_task(task), overrides)
        if (sides := self.roster.task.match.sides) != 2:
            raise ConfigError(f"{task} cannot be played: it has {sides} side, but a match needs 2. Choose aircombat.")
        self.matches: dict[str, Match] = {}
        self._lock = threading.Lock()

    def begin(self, names: Sequence[str], start: str | None = None, seed: int | None = None) -> str:
        """Start a match, and return its id.

        Raises:
            ConfigError: There are too many matches, or the names, start or seed are not valid.
        """
        with self._lock:
            limit = CROWDED_S if len(self.matches) >= MAX_MATCHES else IDLE_S
            for name, match in list(self.matches.items()):
                if match.close_if_idle(limit):
                    del self.matches[name]
            if len(self.matches) >= MAX_MATCHES:
                raise ConfigError(f"There are {MAX_MATCHES} matches already: join one of them, or wait until one ends.")
            name = secrets.token_urlsafe(6)
            self.matches[name] = Match(self.roster, names, start, secrets.randbelow(2**31) if seed is None else seed)
            return name

    def listed(self) -> list[dict[str, Any]]:
        """Return the id, seats, number of people and simulated seconds of each match, as JSON-able values."""
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


def read_play_args(overrides: Sequence[str]) -> tuple[MatchManager, str]:
    """Turn the arguments of `fledge play` into a match manager and the path of the page to open.

    The page is the match, or the lobby if no match is described.

    Raises:
        ConfigError: An argument is not valid, or the match cannot start; checked before anything is served.
    """
    pairs = [each.split("=", 1) for each in overrides if "=" in each]
    given = {key: value for key, value in pairs if key in KEYS}
    settings = [f"{key}={value}" for key, value in pairs if key not in KEYS]
    tasks = [each for each in overrides if "=" not in each]
    if len(tasks) > 1:
        raise ConfigError(f"Name one task, not {' and '.join(tasks)}; other arguments have the form key=value.")
    if "opponent" in given:
        if "red" in given:
            raise ConfigError("opponent and red both name the red side: leave one of them out.")
        given["red"] = given.pop("opponent")
    matches = MatchManager(tasks[0] if tasks else DEFAULT_TASK, settings)
    seed = given.get("seed")
    if seed is not None and not (seed.isdigit() and int(seed) <= MAX_SEED):
        raise ConfigError(f"seed={seed} must be a whole number between 0 and {MAX_SEED}.")
    names = [matches.roster.add(given.get(side, PERSON)) for side in ("blue", "red")]
    matches.roster.begin(names, given.get("start"), int(seed or 0)).close()
    if not given:
        return matches, "/play"
    query = {"blue": names[0], "red": names[1]} | {k: given[k] for k in ("start", "seed") if k in given}
    return matches, f"/play?{urlencode(query)}"
