"""Where an env runs: device, seed, threads, and its place among the envs of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EnvPlacement:
    """Everything that `Task.make_env` needs besides the env's settings."""

    device: str = "cpu"
    seed: int = 0
    num_threads: int | None = None
    """CPU threads that simulate; None: one per core."""
    env_offset: int = 0
    """Index of this env's first row in the whole population, where ranks share one."""
    total_envs: int | None = None
    """Rows of the whole population; None: those of this env."""
    rank: int = 0
    """Process that asks, where each process has maps of its own."""
    held_out: bool = False
    """True for evaluation: maps and seeds that no training uses."""
