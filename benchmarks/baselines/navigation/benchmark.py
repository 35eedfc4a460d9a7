"""Navigation for `python -m benchmarks sim`: NavRL's task, drones spread through the forest from the start.

350 columns, 80 moving obstacles, a decision each physics step, full observation, NavRL's reward and its rule for collisions.
Left out of the baselines, in their favour: the crowd's own motion, and the start of new episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.baselines.navigation.numpy_sim import NumpySim
from benchmarks.baselines.navigation.parity import check_parity, snapshot_of
from benchmarks.baselines.navigation.plain_step import Snapshot
from benchmarks.baselines.navigation.torch_sim import TorchSim
from benchmarks.sim_benchmark import Baselines, Flight, Native, SimBenchmark, tensor_bytes
from fledge.tasks.navigation.config import Collision, NavigationConfig, RewardConfig, RewardKind, Starts
from fledge.tasks.navigation.env import NavigationEnv

ACTION = (0.9, 0.5, 0.5)  # goal frame: 1.6 m/s straight towards the goal
WARM_UP_STEPS = 125  # 2 s: drones are at speed, and some have crashed and begun again


def bench_config(num_envs: int) -> NavigationConfig:
    """Return the config of NavRL's task, with drones spread through the forest from the start."""
    return NavigationConfig(
        num_envs=num_envs,
        decimation=1,
        success_ends_episode=False,
        starts=Starts.mixed,
        inside_share=0.8,
        collision=Collision.beams,
        reward=RewardConfig(kind=RewardKind.navrl, height=8.0),
    )


class NavigationFlight(Flight):
    """Drones at cruising speed."""

    env: NavigationEnv

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.env)

    def arguments(self, native: Native) -> list[tuple[Any, ...]]:
        crowd = self.env.bank.tensors
        action = self.actions[0]
        assert isinstance(action, torch.Tensor)
        return [(native(action), native(crowd["trail"][-1].clone()), native(crowd["vel"].clone()))]

    def check(self, baselines: Baselines) -> dict[str, Any]:
        return check_parity(self.env, self.out, baselines)

    def memory(self) -> dict[str, int]:
        own = {k: v for k, v in vars(self.env).items() if k != "bank"}
        return {"drones": tensor_bytes(own) + tensor_bytes(self.out), "maps": tensor_bytes(vars(self.env.bank))}


class NavigationBenchmark(SimBenchmark):
    """Drones among columns and moving obstacles."""

    one, many = "drone", "drones"
    warm_up = WARM_UP_STEPS
    baselines: Baselines = {
        "numpy": (NumpySim, torch.Tensor.numpy),
        "torch": (TorchSim, lambda tensor: tensor),
    }

    def begin(self, count: int, threads: int, seed: int) -> NavigationFlight:
        env = NavigationEnv(bench_config(count), seed=seed, num_threads=threads)
        out = env.make_buffers()
        env.reset(out=out)
        action = torch.tensor(ACTION).repeat(count, 1)
        for _ in range(self.warm_up):
            env.step(action, out=out)
        return NavigationFlight(env, out, [action])

    def settings(self, count: int) -> dict[str, Any]:
        cfg = bench_config(count)
        names = ("num_envs", "static_obstacles", "moving_obstacles", "num_maps", "decimation")
        chosen = {"beams": 144, "reward": "navrl", "action": list(ACTION), "warm_up": self.warm_up}
        return {name: getattr(cfg, name) for name in names} | chosen

    def describe(self, settings: Mapping[str, Any]) -> str:
        return (
            f"{settings['static_obstacles']} columns, {settings['moving_obstacles']} moving obstacles, "
            f"{settings['num_maps']} maps, {settings['beams']} beams, a decision each {settings['decimation']} physics "
            "step, NavRL's reward"
        )
