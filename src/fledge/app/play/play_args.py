"""The words of `fledge play`: which world, who flies, how it begins, and the link to that fight.

fledge play aircombat opponent=crank            you fly blue
fledge play aircombat blue=runs/duel red=envelope seed=7 start=head_on env.missile.carried=2
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from fledge.app.play.match_manager import Arena
from fledge.app.play.roster import MAX_SEED, PERSON
from fledge.core.errors import ConfigError

OURS = ("blue", "red", "opponent", "start", "seed")


def read_invitation(words: Sequence[str]) -> tuple[Arena, str]:
    """The arena that words ask for, and the path of the page that begins the fight, or asks who fights.

    Raises:
        ConfigError: when somebody or something in them is not known; it is tried before anything is served.
    """
    given = dict(word.split("=", 1) for word in words if word.partition("=")[0] in OURS and "=" in word)
    settings = [word for word in words if "=" in word and word.partition("=")[0] not in OURS]
    tasks = [word for word in words if "=" not in word]
    if len(tasks) > 1:
        raise ConfigError(f"{' and '.join(tasks)} came, but one world is played in.")
    if "opponent" in given:
        if "red" in given:
            raise ConfigError("opponent and red came, but they are the same seat: give one of them.")
        given["red"] = given.pop("opponent")
    arena = Arena(tasks[0] if tasks else "aircombat", settings)
    seed = given.get("seed")
    if seed is not None and not (seed.isdigit() and int(seed) <= MAX_SEED):
        raise ConfigError(f"The seed is {seed}, but must be a whole number between 0 and {MAX_SEED}.")
    names = [arena.roster.add(given.get(side, PERSON)) for side in ("blue", "red")]
    arena.roster.begin(names, given.get("start"), int(seed or 0)).close()
    if not given:
        return arena, "/play"
    query = {"blue": names[0], "red": names[1]} | {k: given[k] for k in ("start", "seed") if k in given}
    return arena, f"/play?{urlencode(query)}"
