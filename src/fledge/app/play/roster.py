"""The roster: names of the scripted policies, runs and policy files that a match may use, and env configs of matches.

    roster = Roster(task)
    roster.add("runs/duel")                  add a run or a policy file; it is called duel
    fight = roster.begin(["you", "duel"], start="head_on", seed=7)

Names come from links and pages, so only names on the roster are accepted, and no paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.app.play.fight_state import Seat
from fledge.app.play.session import Fight
from fledge.core.errors import ConfigError
from fledge.evaluation.env_config import eval_env, without_opponent
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import LoadedPolicy, load_policy, make_pilot

PERSON = "you"
MAX_NAME = 200  # characters
MAX_SEED = 2**53 - 1  # largest whole number that JavaScript represents exactly


class Roster:
    """Gives each scripted policy, run and policy file that can fly a side a name, and loads it by that name.

    Args:
        task: The task to play.
        overrides: `env.key=value` settings from the command line; pages cannot add any.
    """

    def __init__(self, task: Task, overrides: Sequence[str] = ()) -> None:
        self.task, self.overrides = task, list(overrides)
        self._files: dict[str, str] = {name: name for name in task.policy.shipped()}

    def add(self, place: str) -> str:
        """Add a run, a policy file or a file.py:Class, and return its name on the roster, made from the folder, file or class.

        If `place` is already a name on the roster, return it.

        Raises:
            ConfigError: There is no such policy, or it belongs to another task.
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
        """Add a run under a name without loading it; if the run has no policy, `load` raises ConfigError later."""
        if name != PERSON and make_pilot(self.task, name) is None:
            self._files.setdefault(name, place)

    def names(self) -> list[str]:
        """Return all names on the roster, the task's scripted policies first."""
        return [*self.task.pilots(), *self._files]

    def starts(self) -> list[str]:
        """Return the names of the possible starts, which are the task's env presets."""
        return self.task.presets.names("env")

    def load(self, name: str) -> LoadedPolicy:
        """Load a policy by its name; raise ConfigError if the name is not on the roster."""
        if len(name) <= MAX_NAME:
            if name in self._files:
                return load_policy(self._files[name], self.task)
            if (pilot := make_pilot(self.task, name)) is not None:
                return LoadedPolicy(name, pilot, self.task, self.task.policy.default_env_config(pilot))
        known = ", ".join(self.names())
        raise ConfigError(f"{name[:MAX_NAME]!r} is not a known pilot or policy. Choose one of {known}.")

    def seat(self, name: str, policy: LoadedPolicy | None = None) -> Seat:
        """Return a seat for the policy of this name, or an empty seat for `PERSON`; pass `policy` if it is already loaded."""
        if name == PERSON:
            return Seat(PERSON)
        policy = policy or self.load(name)
        return Seat(name, policy.agent.eval(), (policy.env.decision_s if policy.env is not None else None) or 1.0)

    def begin(self, names: Sequence[str], start: str | None = None, seed: int = 0) -> Fight:
        """Start a fight in the env that the first trained policy was trained in; without one, in the task's default env.

        Raises:
            ConfigError: A name or the start is unknown, or an agent does not fit the env.
        """
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"seed={seed} must be between 0 and {MAX_SEED}.")
        policies = [None if name == PERSON else self.load(name) for name in names]
        seats = [self.seat(name, policy) for name, policy in zip(names, policies, strict=True)]
        return Fight(self.task, self.env_config(policies, start), seats, seed)

    def env_config(self, policies: Sequence[LoadedPolicy | None], start: str | None) -> Any:
        """Return the env config of a fight between these policies (None is a person) from this start."""
        home = next((policy for policy in policies if policy is not None and policy.env is not None), None)
        policy = without_opponent(home or LoadedPolicy("default", BaseAgent(), self.task, None))
        if start is not None and start not in self.starts():
            raise ConfigError(
                f"start={start[:MAX_NAME]!r} is not a known start. Choose one of {', '.join(self.starts())}."
            )
        return eval_env(policy, start, self.overrides).cfg
