"""compact_maps: the maps of drones in checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fledge.core.errors import InputError
from fledge.tasks.navigation.config import NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.sensing.observations import MoversFrom

WORLD: dict[str, Any] = {
    "num_maps": 2,
    "decimation": 12,
    "plan": True,
    "static_obstacles": 80,
    "moving_obstacles": 8,
    "starts": Starts.crossing,
}
LIDAR: dict[str, Any] = {"movers_from": MoversFrom.lidar, "lidar_sees_movers": True}


def env_of(count: int, **more: Any) -> NavigationEnv:
    return NavigationEnv(NavigationConfig(num_envs=count, **{**WORLD, **more}), seed=3, num_threads=2)


def fly(env: NavigationEnv, steps: int, seed: int) -> list[torch.Tensor]:
    """Fly steadily, so that maps move with the drones; return all observations."""
    drawn = torch.Generator().manual_seed(seed)
    seen = []
    for _ in range(steps):
        action = torch.rand(env.num_envs, 3, generator=drawn) * torch.tensor([0.3, 0.8, 0.0]) + torch.tensor(
            [0.7, 0.1, 0.5]
        )
        seen += [each.clone() for each in env.step(action)["obs"].values()]
    return seen


@pytest.mark.parametrize("more", [{}, LIDAR], ids=["planner", "tracker"])
def test_maps_come_back_bit_for_bit_and_the_flight_continues_exactly(more: dict[str, Any]) -> None:
    env, other = env_of(16, **more), env_of(16, **more)
    env.reset()
    fly(env, 70, 1)
    saved = env.state_dict()
    other.load_state_dict(saved)
    assert env.plan is not None
    assert other.plan is not None
    cells = env.plan.state["cells"]
    assert cells.any(1).sum() > 3
    assert torch.equal(cells, other.plan.state["cells"])
    assert more or len(saved["drones"]["plan_cells_rest_at"]), "no hit has left a map: fly farther"
    if more:
        assert env.tracker is not None
        assert other.tracker is not None
        for name in ("grid", "free"):
            assert env.tracker.state[name].any()
            assert torch.equal(env.tracker.state[name], other.tracker.state[name])
    for a, b in zip(fly(env, 10, 2), fly(other, 10, 2), strict=True):
        assert torch.equal(a, b)
    env.close()
    other.close()


def test_a_drone_with_a_plan_takes_at_most_32_kib_of_a_checkpoint() -> None:
    env = env_of(8)
    env.reset()
    fly(env, 70, 1)
    drones = env.state_dict()["drones"]
    assert sum(tensor.nbytes for tensor in drones.values()) / 8 < 32 * 1024
    env.close()


def test_a_state_with_whole_maps_loads_too() -> None:
    env, other = env_of(4), env_of(4)
    env.reset()
    fly(env, 8, 1)
    state = env.state_dict()
    assert env.plan is not None
    assert other.plan is not None
    packed = [name for name in state["drones"] if name.startswith("plan_cells_")]
    for name in packed:
        del state["drones"][name]
    state["drones"]["plan_cells"] = env.plan.state["cells"].clone()
    other.load_state_dict(state)
    assert torch.equal(env.plan.state["cells"], other.plan.state["cells"])
    env.close()
    other.close()


def test_maps_of_other_drones_are_refused_and_nothing_changes() -> None:
    env = env_of(4)
    env.reset()
    fly(env, 8, 1)
    state = env.state_dict()
    assert env.plan is not None
    before = env.plan.state["cells"].clone()
    state["drones"]["plan_cells_hits_at"] = state["drones"]["plan_cells_hits_at"][:-1]
    with pytest.raises(InputError, match="plan_cells_hits"):
        env.load_state_dict(state)
    assert torch.equal(before, env.plan.state["cells"])
    env.close()
