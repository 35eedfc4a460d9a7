"""A fixture that makes small envs with faulty perception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fledge.tasks.navigation.config import Dynamics, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.perception.config import PerceptionConfig


@pytest.fixture
def make() -> Iterator[Callable[..., NavigationEnv]]:
    """Makes envs with these settings of perception, as keywords, and of the env; closes them after the test."""
    made: list[NavigationEnv] = []

    def build(
        env: dict[str, Any] | None = None,
        seed: int = 3,
        threads: int = 2,
        place: tuple[int, int] = (0, 0),
        **faults: Any,
    ) -> NavigationEnv:
        small: dict[str, Any] = {"num_envs": 16, "num_maps": 4, "static_obstacles": 100, "moving_obstacles": 16}
        small |= {"dynamics": Dynamics.first_order, "perception": PerceptionConfig(**faults)}
        cfg = NavigationConfig(**(small | (env or {})))
        offset, total = place
        made.append(NavigationEnv(cfg, seed=seed, num_threads=threads, env_offset=offset, total_envs=total or None))
        return made[-1]

    yield build
    for each in made:
        each.close()
