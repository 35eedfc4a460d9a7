"""Where an env runs: device, seed, threads, and its place among the envs of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fledge.core.errors import InputError

MAX_THREADS = 4096


@dataclass(frozen=True)
class EnvPlacement:
    """Everything that `Task.make_env` needs besides the env's settings."""

    device: str = "cpu"
    seed: int = 0
    num_threads: int | None = None
    """CPU threads of the simulation; None: one per core."""
    env_offset: int = 0
    """Global index of this env's first row, if the envs of several ranks form one population."""
    total_envs: int | None = None
    """Number of rows of that population; None: the rows of this env."""
    rank: int = 0
    """Rank of the process; each rank has its own maps."""
    held_out: bool = False
    """True for evaluation: use maps and seeds that training never uses."""

    def __post_init__(self) -> None:
        """Raise InputError for invalid values."""
        if not re.fullmatch(r"cpu|cuda(:\d+)?", str(self.device)):
            raise InputError(f"device={self.device!r} is not known: choose cpu, cuda or cuda:N.")
        at_least = {"seed": 0, "num_threads": 1, "env_offset": 0, "total_envs": 1, "rank": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is None and name in ("num_threads", "total_envs"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}={value!r} must be a whole number of at least {least}.")
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise InputError(
                f"num_threads={self.num_threads} must be at most {MAX_THREADS}: leave it out for one per core."
            )
        if self.total_envs is not None and self.env_offset >= self.total_envs:
            raise InputError(
                f"env_offset={self.env_offset} must be less than total_envs={self.total_envs}: it is the index of this "
                "env's first row among all rows."
            )
