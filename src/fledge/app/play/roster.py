"""Who can be met in a fight, and the worlds that fights begin in: all that a link or a page may name.

    roster = Roster(task, words)             words: settings that were given on the command line
    roster.add("runs/duel")                  a run or a policy file that was named there: it is called duel
    roster.names()                           the task's pilots, shipped policies, and those
    fight = roster.begin(["you", "crank"], start="head_on", seed=7)

Names come from anywhere, so only what is on the roster is taken: a path in a link is just a name that nobody has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.app.play.seats import Seat
from fledge.app.play.session import Fight
from fledge.core.errors import ConfigError
from fledge.evaluate.env_config import eval_env
from fledge.tasks.base import Task
from fledge.tasks.policies import LoadedPolicy, load_policy, make_pilot

PERSON = "you"
MAX_NAME = 200  # letters
MAX_SEED = 2**53 - 1  # what a browser can count to


class Roster:
    """Everybody who can sit down.

    Args:
        task: The world.
        words: `env.key=value` words of whoever started the app; a page cannot add any.
    """

    def __init__(self, task: Task, words: Sequence[str] = ()) -> None:
        self.task, self.words = task, list(words)
        self._files: dict[str, str] = {name: name for name in task.policy.shipped()}

    def add(self, place: str) -> str:
        """Let a run or policy file be met; the name that it gets: that of its folder or file. Pilots are there anyway.

        Raises:
            ConfigError: when there is no such policy, or it is of another world.
        """
        if place == PERSON or place in self._files or make_pilot(self.task, place) is not None:
            return place
        load_policy(place, self.task)
        path = Path(place).resolve()
        name = path.stem if path.suffix == ".fledge" else path.name
        while name in (PERSON, *self.names()):
            name += "'"
        self._files[name] = place
        return name

    def put(self, name: str, place: str) -> None:
        """Let what is at a place be met under a name, unseen: a run that has no policy says so when it is chosen."""
        if name != PERSON and make_pilot(self.task, name) is None:
            self._files.setdefault(name, place)

    def names(self) -> list[str]:
        """Who can be met, the task's pilots first."""
        return [*self.task.pilots(), *self._files]

    def starts(self) -> list[str]:
        """How fights may begin: the task's env presets."""
        return self.task.presets.names("env")

    def load(self, name: str) -> LoadedPolicy:
        """An agent by its name.

        Raises:
            ConfigError: when nobody is called that.
        """
        if len(name) <= MAX_NAME:
            if name in self._files:
                return load_policy(self._files[name], self.task)
            if (pilot := make_pilot(self.task, name)) is not None:
                return LoadedPolicy(name, pilot, self.task, self.task.policy.default_env_config(pilot))
        known = ", ".join(self.names())
        raise ConfigError(f"Nobody here is called {name[:MAX_NAME]!r}; there are {known}.")

    def seat(self, name: str) -> Seat:
        """Somebody to sit down."""
        return Seat(PERSON) if name == PERSON else self._seat(name, self.load(name))

    def _seat(self, name: str, policy: LoadedPolicy) -> Seat:
        decision_s = policy.env.decision_s if policy.env is not None else None
        return Seat(name, policy.agent.eval(), decision_s or 1.0)

    def begin(self, names: Sequence[str], start: str | None = None, seed: int = 0) -> Fight:
        """A new fight, in the world that the first learned agent was trained in, if there is one.

        Raises:
            ConfigError: when somebody or something is not known, or cannot fly there.
        """
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"The seed is {seed}, but must lie between 0 and {MAX_SEED}.")
        policies = [None if name == PERSON else self.load(name) for name in names]
        seats = [Seat(PERSON) if p is None else self._seat(n, p) for n, p in zip(names, policies, strict=True)]
        return Fight(self.task, self.world(policies, start), seats, seed)

    def world(self, policies: Sequence[LoadedPolicy | None], start: str | None) -> Any:
        """The settings of a fight between these."""
        home = next((policy for policy in policies if policy is not None and policy.env is not None), None)
        anybody = home or LoadedPolicy("anybody", BaseAgent(), self.task, None)
        if start is not None and start not in self.starts():
            raise ConfigError(f"There is no start {start[:MAX_NAME]!r}; there are {', '.join(self.starts())}.")
        return eval_env(anybody, start, self.words).cfg
