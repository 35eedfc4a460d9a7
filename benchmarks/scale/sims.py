"""Simulators by number of envs: navigation drones and air-combat duels, as in `python -m benchmarks sim`."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.baselines.aircombat.benchmark import DuelBenchmark
from benchmarks.baselines.aircombat.benchmark import bench_config as duel_config
from benchmarks.baselines.navigation.benchmark import NavigationBenchmark
from benchmarks.machine import release_memory, resident_bytes
from benchmarks.scale.section import Figure, Need, Section
from benchmarks.sim import Candidate
from benchmarks.sim_benchmark import Flight, SimBenchmark
from fledge.core.errors import FledgeError
from fledge.core.machine import default_threads
from fledge.tasks.aircombat.env import AircombatEnv

SEED = 0
CHECKED = 30  # decisions of duels that are compared


class SimSection(Section):
    """A simulator, with the same envs in every batch."""

    benchmark: SimBenchmark
    bytes_each: float
    """Upper limit of the memory per env."""

    def __init__(self) -> None:
        self.smallest: dict[int, TensorDict] = {}  # outputs of a small batch, by number of envs

    def need(self, size: int) -> Need:
        return Need(memory=1e9 + self.bytes_each * size)

    def measure(self, size: int, seconds: float, folder: Path) -> dict[str, float]:
        few, threads = min(size, *self.quick_sizes), default_threads()
        if few not in self.smallest:  # this flight also loads the kernels, whose memory is not counted
            alone = self.benchmark.begin(few, threads, SEED)
            self.smallest[few] = self.fly(alone, few, few)
            alone.close()
        release_memory()
        before = resident_bytes()
        flight = self.benchmark.begin(size, threads, SEED)
        try:
            release_memory()
            held = resident_bytes() - before
            self.check(self.fly(flight, size, few), few, size)
            times, cpu = Candidate(flight.go_back, flight.step, flight.calls).time(seconds)
        finally:
            flight.close()
        steps = size * flight.physics_steps
        return {
            "steps_per_s": steps / float(np.median(times)),
            "step": 1e9 * float(np.median(times)) / steps,
            "step_cpu": 1e9 * cpu / len(times) / steps,
            "cores": cpu / sum(times),
            "memory": held / size / 1e3,
        }

    @abstractmethod
    def fly(self, flight: Flight, size: int, first: int) -> TensorDict:
        """Return the outputs of the `first` envs of a batch of `size` after some time, when `flight` has just begun."""

    def check(self, found: TensorDict, few: int, size: int) -> None:
        """Raise FledgeError unless the first envs of a batch fly exactly as in the smallest batch."""
        wanted = self.smallest[few]
        wrong = [str(key) for key in wanted.keys(True, True) if not torch.equal(found[key], wanted[key])]
        if wrong:
            raise FledgeError(
                f"The first {few} {self.items} of a batch of {size:,} fly differently than alone ({', '.join(wrong)}), so "
                "nothing was timed."
            )


class Forest(NavigationBenchmark):
    """The forest of `python -m benchmarks sim` with a shorter warm-up, as 65,536 drones take a second per step."""

    warm_up = 30


class Drones(SimSection):
    name, title = "drones", "Navigation drones"
    items, per = "drones", "drone and physics step"
    sizes, quick_sizes = (64, 256, 1024, 4096, 16384, 65536), (8, 32)
    verified = "the first drones of each batch fly bit for bit as in the smallest batch"
    benchmark, bytes_each = Forest(), 20e3
    figures = (
        Figure("steps_per_s", "env steps/s", "", None),
        Figure("step", "time", "ns", cpu=True),
        Figure("memory", "resident memory per drone", "kB", "space"),
        Figure("cores", "cores busy", "", None),
    )

    def fly(self, flight: Flight, size: int, first: int) -> TensorDict:
        warmed_up: TensorDict = flight.out[:first].clone()
        return warmed_up


class Duels(SimSection):
    name, title = "duels", "Air-combat duels"
    items, per = "duels", "duel and physics step"
    sizes, quick_sizes = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000), (4, 16)
    verified = "the first duels of each batch end bit for bit as in the smallest batch"
    benchmark, bytes_each = DuelBenchmark(), 20e3
    figures = (*Drones.figures[:2], Figure("memory", "resident memory per duel", "kB", "space"), Drones.figures[3])

    def fly(self, flight: Flight, size: int, first: int) -> TensorDict:
        # in an env of its own, as the actions of `flight` depend on the number of duels
        env = AircombatEnv(duel_config(size), seed=SEED, num_threads=default_threads())
        out = env.make_buffers()
        env.reset(out=out)
        row = torch.arange(env.num_envs)
        for step in range(CHECKED):
            action = {
                "rudder": torch.sin(0.7 * row + 0.2 * step),
                "throttle": 0.5 + 0.5 * torch.cos(math.pi * row / 7),
                "fire": ((row + step) % 20 == 0).long(),
            }
            env.step(action, out=out)
        env.close()
        flown: TensorDict = out[: 2 * first].clone()
        return flown
