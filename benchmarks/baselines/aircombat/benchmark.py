"""Air combat for `python -m benchmarks sim`: duels in the middle of their fights, missiles in the air.

Scripted policies (`behaviour`) fly the warm-up and the timed decisions. Their actions are recorded first and replayed by
every implementation from the same state, so their own time does not count. A call is a decision: ten physics steps, one
observation, and the start of new fights. Left out of the baselines, in their favour: observation, reward, new fights.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.baselines.aircombat.behaviour import Pilots
from benchmarks.baselines.aircombat.numpy_duel import Fights, NumpyDuel
from benchmarks.baselines.aircombat.parity import Action, fights_of, fly_together
from benchmarks.baselines.aircombat.torch_duel import TorchDuel
from benchmarks.sim_benchmark import Baselines, Flight, Native, SimBenchmark, require, tensor_bytes, verdict
from fledge.tasks.aircombat.config import AircombatConfig, Scenario
from fledge.tasks.aircombat.env import AircombatEnv

WARM_UP = 60  # decisions: fights of many ages, missiles in the air
CALLS = 20  # decisions that are recorded, and flown again and again from the same moment
# name: largest difference, and the share of fights that may exceed it: float32 may call a close one differently
TOLERANCES = {"fighters, m": (1.0, 0.0), "missiles, m": (1.0, 1e-2), "outcome": (0.0, 1e-3), "end, s": (0.11, 1e-3)}


def bench_config(duels: int) -> AircombatConfig:
    """Return the config of the benchmark: fights of every kind, both sides flown by the caller, no space-time graph."""
    return AircombatConfig(num_envs=2 * duels, scenario=Scenario.mixed, spacetime=False)


class DuelFlight(Flight):
    """Duels in the middle of their fights."""

    env: AircombatEnv
    actions: list[Action]

    def __init__(self, env: AircombatEnv, out: TensorDict, seed: int) -> None:
        pilots = Pilots(env.num_envs, seed)
        for _ in range(WARM_UP):
            env.step(pilots.act(env), out=out)
        self.begun = env.state_dict()
        actions: list[Action] = []
        missiles = []
        for _ in range(CALLS):
            actions.append(pilots.act(env))
            env.step(actions[-1], out=out)
            missiles.append(int(env.state["m_flying"].sum()) / env.num_duels)
        super().__init__(env, out, actions, CALLS)
        self.physics_steps = round(env.decision_s / env.cfg.dt_s)
        self.missiles_per_duel = float(np.mean(missiles))
        self.go_back()

    def go_back(self) -> None:
        self.env.load_state_dict(self.begun)

    def snapshot(self) -> Fights:
        return fights_of(self.env)

    def arguments(self, native: Native) -> list[tuple[Any, ...]]:
        names = ("rudder", "throttle", "fire")
        return [(tuple(native(action[name].view(-1, 2)) for name in names),) for action in self.actions]

    def check(self, baselines: Baselines) -> dict[str, Any]:
        report: dict[str, Any] = {"steps": CALLS * self.physics_steps, "duels": self.env.num_duels}
        for name, (make, native) in baselines.items():
            self.go_back()
            found = fly_together(self.env, self.out, make(self.snapshot()), self.actions, self.arguments(native))
            gaps = (found.fighter_gap, found.missile_gap, 1.0 * (found.outcome != found.plain_outcome), found.end_gap)
            report["still_flying"] = int((found.outcome == 0).sum())
            report[name] = {
                key: verdict(gap, *limits) for (key, limits), gap in zip(TOLERANCES.items(), gaps, strict=True)
            }
            require(name, report[name])
        self.go_back()
        return report

    def memory(self) -> dict[str, int]:
        return {"duels": tensor_bytes(vars(self.env)) + tensor_bytes(self.out)}

    def figures(self) -> dict[str, float]:
        return {"missiles_per_duel": round(self.missiles_per_duel, 2)}


class DuelBenchmark(SimBenchmark):
    """Duels of two fighters with missiles."""

    one, many, call, count = "duel", "duels", "decision", 10_000
    sizes = (100, 1_000, 10_000, 100_000)
    baselines: Baselines = {
        "numpy": (functools.partial(NumpyDuel, bench_config(1), single=True), torch.Tensor.numpy),
        "torch": (functools.partial(TorchDuel, bench_config(1)), lambda tensor: tensor),
    }

    def begin(self, count: int, threads: int, seed: int) -> DuelFlight:
        env = AircombatEnv(bench_config(count), seed=seed, num_threads=threads)
        out = env.make_buffers()
        env.reset(out=out)
        return DuelFlight(env, out, seed)

    def settings(self, count: int) -> dict[str, Any]:
        cfg = bench_config(count)
        names = ("dt_s", "decimation", "load_limits", "spacetime")
        chosen = {"scenario": cfg.scenario.value, "carried": cfg.missile.carried, "warm_up": WARM_UP, "calls": CALLS}
        return {"num_envs": count, **{name: getattr(cfg, name) for name in names}, **chosen}

    def describe(self, settings: Mapping[str, Any]) -> str:
        return (
            f"{settings['scenario']} starts, {settings['carried']} missiles a side, physics steps of {settings['dt_s']:g} s, "
            f"an observation every {settings['decimation']}; steps/s are physics steps of duels"
        )
