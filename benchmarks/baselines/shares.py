"""Run a plain simulation on several threads, each with a share of the envs, because NumPy has no threads of its own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch


class Shares:
    """As many simulations as threads, stepped together.

    Args:
        make: Makes a simulation from a snapshot.
        threads: Shares to make.
        snapshot: All envs.
    """

    def __init__(self, make: Callable[[Any], Any], threads: int, snapshot: Any) -> None:
        count = len(snapshot.pos)
        edges = [count * k // threads for k in range(threads + 1)]
        self.rows = [slice(a, b) for a, b in itertools.pairwise(edges) if b > a]
        self.sims = [make(part_of(snapshot, rows)) for rows in self.rows]
        # each worker is one thread; torch's own threads would be nested in it
        self.pool = ThreadPoolExecutor(len(self.rows), initializer=torch.set_num_threads, initargs=(1,))

    def load(self, snapshot: Any) -> None:
        """Continue from a snapshot."""
        for sim, rows in zip(self.sims, self.rows, strict=True):
            sim.load(part_of(snapshot, rows))

    def step(self, action: Any, *shared: Any) -> dict[str, Any]:
        """Make one step with an array of actions, or a tuple of them; return the results of all envs."""
        parts = list(self.pool.map(lambda sim, rows: sim.step(rows_of(action, rows), *shared), self.sims, self.rows))
        first = next(iter(parts[0].values()))
        join: Callable[..., Any] = np.concatenate if isinstance(first, np.ndarray) else torch.cat
        return {key: join([part[key] for part in parts]) for key in parts[0]}


def rows_of(action: Any, rows: slice) -> Any:
    """Return some rows of an array, or of each array of a tuple."""
    return tuple(part[rows] for part in action) if isinstance(action, tuple) else action[rows]


def part_of(snapshot: Any, rows: slice) -> Any:
    """Return some envs of a snapshot; what envs share, such as maps, stays."""
    count = len(snapshot.pos)
    fields = {field.name: getattr(snapshot, field.name) for field in dataclasses.fields(snapshot)}
    per_env = {k: v[rows] for k, v in fields.items() if k != "grid" and np.ndim(v) and len(v) == count}
    return dataclasses.replace(snapshot, **per_env)
