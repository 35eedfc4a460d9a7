"""Where an env runs: device, seed, threads, and its place among the envs of a run."""

from __future__ import annotations

from dataclasses import dataclass


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
