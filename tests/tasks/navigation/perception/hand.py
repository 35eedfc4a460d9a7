"""Put drones and movers where a test wants them, and read what drones observe."""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.tasks.navigation.env import NavigationEnv


def at_rest(n: int) -> Tensor:
    return torch.full((n, 3), 0.5)


def look(env: NavigationEnv) -> dict[str, Tensor]:
    """Return what all drones observe now, without a step."""
    return dict(env.reset(torch.zeros(env.num_envs, dtype=torch.bool))["obs"].items())


def stage(env: NavigationEnv, movers: list[tuple[float, float]], kinds: list[int], height: float = 2.0) -> None:
    """Put every drone at (0, 0, height), heading along x to a goal at (20, 0), and movers at these points of every map."""
    env.reset()
    state, tensors = env.state, env.bank.tensors
    state["pos"].copy_(torch.tensor([0.0, 0.0, height]).expand(env.num_envs, 3))
    state["start"].copy_(state["pos"])
    state["goal"].copy_(torch.tensor([20.0, 0.0, height]).expand(env.num_envs, 3))
    state["quat"].copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(env.num_envs, 4))
    state["step"].fill_(3 * env.cfg.decimation)  # in the midst of an episode
    tensors["clock"].fill_(1000)
    env.bank.kinds[: len(kinds)] = torch.tensor(kinds, dtype=torch.int32)
    for j, (x, y) in enumerate(movers):
        tensors["trail"][:, :, j] = torch.tensor([x, y, 2.5 if kinds[j] >= 4 else height])
    tensors["count"].fill_(len(movers))


def next_frame(env: NavigationEnv) -> None:
    env.bank.tensors["clock"].add_(env.cfg.decimation)


def rows(obs: dict[str, Tensor]) -> Tensor:
    """Return the observed movers, [N, 5, 10]."""
    return obs["dynamic_obstacle"].squeeze(1)


def seen(obs: dict[str, Tensor]) -> Tensor:
    """Return which rows hold a mover, [N, 5] bool."""
    return rows(obs)[..., :3].abs().amax(dim=-1) > 0
