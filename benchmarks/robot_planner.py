"""`python -m benchmarks robot-planner`: the planner of fledge_runtime, in C and in NumPy, beside the simulator's.

A policy flies held-out envs. At every decision each drone's own planner computes the plan from the drone's observations, and
the policy flies on that plan. Plans are compared with the simulator's, commands with those of the policy on the simulator's
plans, and outcomes with those of the same flights without the runtime. Then the time of a decision.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType

from benchmarks.tables import machine_line, table, three_digits
from fledge.core.machine import machine_info
from fledge.core.settings import flat_settings
from fledge.deployment.runtime import find_runtime
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.env_config import eval_env
from fledge.tasks.policy_loader import LoadedPolicy, load_policy

EQUAL = 1e-5
WAVE = 128  # flights at once


class Tally:
    """Plans of one engine beside the simulator's, and the times of its decisions."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.ms: list[float] = []

    def plan(self, planner: Any, obs: dict[str, Any]) -> dict[str, np.ndarray]:
        expected, before = obs["plan"], time.perf_counter()
        got: dict[str, np.ndarray] = planner.step(obs)
        self.ms.append(1e3 * (time.perf_counter() - before))
        rows = np.abs(got["dynamic_obstacle"] - obs["dynamic_obstacle"]).max() if planner.tracks else 0.0
        self.gaps.append(float(max(np.abs(got["plan"] - expected).max(), rows)))
        return got

    def figures(self) -> dict[str, Any]:
        gaps, ms = np.array(self.gaps), np.array(self.ms)
        times = {f"p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
        apart = {"unequal": int((gaps > 0).sum()), "apart": int((gaps > EQUAL).sum()), "furthest": float(gaps.max())}
        return {"decisions": len(gaps), **apart, "ms": {**times, "worst": float(ms.max())}}


def run(
    policy: str = "fledge-nav",
    flights: int = 1000,
    numpy_flights: int = 8,
    seed: int = 11,
    preset: str = "crossing",
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return how plans, commands and outcomes compare, and the time of a decision; JSON-able."""
    say = on_progress or (lambda line: None)
    find_runtime()
    from fledge_runtime import native

    loaded, tallies = load_policy(policy), {"c": Tally(), "numpy": Tally()}
    cfg = dataclasses.replace(eval_env(loaded, preset, ()).cfg, pose=True)
    ours: list[int] = []
    own: list[int] = []
    commands: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        library = native.load(native.build(Path(folder) / native.LIBRARY))
        for wave, first in enumerate(range(0, flights, WAVE)):
            say(f"flight {first + 1} of {flights}")
            made = dataclasses.replace(cfg, num_envs=min(WAVE, flights - first))
            pilots = Pilots(made, library, tallies, numpy_flights if wave == 0 else 0)
            ours += fly(loaded, made, seed + wave, pilots)
            own += fly(loaded, made, seed + wave, None)
            commands += pilots.gaps
    gaps = cfg.speed_limit * np.array(commands)
    return {
        "machine": machine_info(),
        "settings": {"policy": policy, "flights": flights, "seed": seed, "preset": preset},
        "engines": {name: tally.figures() for name, tally in tallies.items() if tally.gaps},
        "commands": {
            "decisions": len(gaps),
            "apart": int((gaps > EQUAL).sum()),
            "furthest_m_s": float(gaps.max()),
        },
        "outcomes": {"flights": len(ours), "same": int((np.array(ours) == np.array(own)).sum())},
    }


class Pilots:
    """A planner of the runtime for each drone, and their commands beside those of the policy alone."""

    def __init__(self, cfg: Any, library: Any, tallies: dict[str, Tally], numpy_flights: int) -> None:
        from fledge_runtime.planner import Planner

        settings, self.tallies, self.gaps = flat_settings(cfg), tallies, []  # type: ignore[var-annotated]
        self.planners = [Planner(settings, "c", library) for _ in range(cfg.num_envs)]
        self.slow = [Planner(settings, "numpy") for _ in range(min(numpy_flights, cfg.num_envs))]
        self.flown: np.ndarray | None = None

    def steer(self, policy: LoadedPolicy, obs: Any, expected: torch.Tensor, ended: list[int]) -> torch.Tensor:
        """Return the policy's actions on the runtime's plans."""
        seen = {name: values.clone() for name, values in obs.items()}
        for i in (i for i, over in enumerate(ended) if not over):
            row = {name: values[i].numpy() for name, values in obs.items()}
            row["flown"] = None if self.flown is None else self.flown[i]
            for name, value in self.tallies["c"].plan(self.planners[i], row).items():
                seen[name][i] = torch.from_numpy(value)
            if i < len(self.slow):
                self.tallies["numpy"].plan(self.slow[i], row)
        action = policy.agent.act(seen)
        assert isinstance(action, torch.Tensor)
        gaps = 2.0 * (action - expected).abs().amax(dim=1)
        self.gaps += [float(gaps[i]) for i, over in enumerate(ended) if not over]
        self.flown = action.numpy().copy()
        return action


def fly(policy: LoadedPolicy, cfg: Any, seed: int, pilots: Pilots | None) -> list[int]:
    """Fly one episode in each held-out env, and return the outcomes."""
    ended = [0] * cfg.num_envs
    with contextlib.closing(policy.task.make_env(cfg, EnvPlacement(seed=seed, held_out=True))) as env:
        out = env.reset()
        policy.agent.reset()
        while not all(ended):
            action = policy.agent.act(out["obs"])
            assert isinstance(action, torch.Tensor)
            if pilots is not None:
                action = pilots.steer(policy, out["obs"], action, ended)
            out = env.step(action)
            policy.agent.reset(out["terminated"] | out["truncated"])
            ended = [old or int(new) for old, new in zip(ended, out["outcome"].tolist(), strict=True)]
    return ended


def render(result: dict[str, Any]) -> list[RenderableType]:
    """Return the figures of `run` as rich renderables."""
    commands, ends = result["commands"], result["outcomes"]
    view = table(
        "Plans beside the simulator's, and time of a decision", "", "decisions", "unequal", "p50 ms", "p99", "worst"
    )
    for name, found in result["engines"].items():
        ms = [three_digits(found["ms"][key]) for key in ("p50", "p99", "worst")]
        view.add_row(name, f"{found['decisions']:,}", f"{found['unequal']:,}", *ms)
    return [
        machine_line(result["machine"], "start"),
        view,
        f"Commands within {EQUAL:g} m/s of those on the simulator's plans: all but {commands['apart']:,} of "
        f"{commands['decisions']:,}; the furthest is {commands['furthest_m_s']:.2g} m/s away",
        f"Flights that end in the same way: {ends['same']:,} of {ends['flights']:,}",
    ]
