"""The arguments of `fledge play`: the task, the pilots, the start and the seed, and the link to that match.

fledge play aircombat opponent=crank            you fly blue
fledge play aircombat blue=runs/duel red=envelope seed=7 start=head_on env.missile.carried=2
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from fledge.app.play.match_manager import DEFAULT_TASK, MatchManager
from fledge.app.play.roster import MAX_SEED, PERSON
from fledge.core.errors import ConfigError

KEYS = ("blue", "red", "opponent", "start", "seed")


def read_play_args(overrides: Sequence[str]) -> tuple[MatchManager, str]:
    """Return a match manager, and the path of the page that starts the match, or of the lobby if no one is named.

    Raises:
        ConfigError: An argument is not valid; the match is tried before anything is served.
    """
    pairs = [each.split("=", 1) for each in overrides if "=" in each]
    given = {key: value for key, value in pairs if key in KEYS}
    settings = [f"{key}={value}" for key, value in pairs if key not in KEYS]
    tasks = [each for each in overrides if "=" not in each]
    if len(tasks) > 1:
        raise ConfigError(f"Give one task, not {' and '.join(tasks)}.")
    if "opponent" in given:
        if "red" in given:
            raise ConfigError("opponent and red name the same seat: give one of them.")
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
