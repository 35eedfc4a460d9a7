"""`python -m benchmarks planner`: time of the planner's decisions, after checking them against the plain NumPy planner.

A batch of drones crosses the forest among movers, flown by the planner. Only its decisions are timed, over whole flights:
near goals and after every few decisions, when paths are searched again, a decision takes longer.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType

from benchmarks.sim_benchmark import require, verdict
from benchmarks.tables import machine_line, shown, table, three_digits
from benchmarks.turns import spread
from fledge.core.machine import default_threads, machine_info
from fledge.evaluation.env_config import eval_env
from fledge.tasks.navigation.config import NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.policy_loader import load_policy
from tests.reference.plain_planner import PlainPlanner

CHECKED_DRONES, CHECKED_DECISIONS = 2, 6
ALLOWED = 0.15  # a point of a path may fall on the border of a cell


def run(
    num_envs: int = 1024,
    threads: int | None = None,
    decisions: int = 550,
    movers: int = 80,
    seed: int = 11,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return agreement with the plain planner, and the time of decisions; JSON-able.

    Raises:
        FledgeError: if the planner chooses other commands than the plain planner; nothing is timed then.
    """
    say = on_progress or (lambda line: None)
    threads = threads or default_threads()
    settings = {"num_envs": num_envs, "threads": threads, "decisions": decisions, "movers": movers, "seed": seed}
    say("checking that the plain planner chooses the same commands")
    parity = {"commands": check(seed)}
    require("plain NumPy", parity)
    say(f"flying {num_envs:,} drones for {decisions:,} decisions")
    return {"machine": machine_info(), "settings": settings, "parity": parity, **fly(settings)}


def check(seed: int) -> dict[str, Any]:
    """Fly a small planner among columns and movers, and compare its commands with the plain planner's."""
    cfg = PlannerConfig(ways_every=0, horizon_s=1.2, brief_s=0.5, headings=6)
    env_cfg = NavigationConfig(
        num_envs=CHECKED_DRONES, num_maps=1, decimation=4, pose=True, starts=Starts.mixed, inside_share=1.0
    )
    env, pilot = NavigationEnv(env_cfg, seed=seed, num_threads=1), PlannerPilot(cfg, env_cfg)
    plain = [PlainPlanner(cfg, env_cfg) for _ in range(CHECKED_DRONES)]
    out, gaps = env.reset(), []
    for _ in range(CHECKED_DECISIONS):
        obs = {name: out["obs"][name] for name in pilot.observes}
        command = pilot.command(obs).clone()
        for i, planner in enumerate(plain):
            expected, _ = planner.act({name: values[i].numpy() for name, values in obs.items()})
            gaps.append(np.abs(command[i].numpy() - expected).max())
        out = env.step(pilot.as_action(command))
        over = out["terminated"] | out["truncated"]
        pilot.reset(over)
        for i in over.nonzero().flatten().tolist():
            plain[i].forget()
    env.close()
    return verdict(np.array(gaps), 1e-3, ALLOWED)


def fly(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the time of one decision of all drones over whole flights, ms of clock and of all cores."""
    policy, num_envs = load_policy("planner"), settings["num_envs"]
    overrides = [f"env.num_envs={num_envs}", f"env.moving_obstacles={settings['movers']}", "env.decimation=4"]
    env_cfg = dataclasses.replace(eval_env(policy, "crossing", overrides).cfg, decimation=4)
    old = torch.get_num_threads()
    torch.set_num_threads(settings["threads"])  # the planner uses as many
    pilot, env = (
        PlannerPilot(env_cfg=env_cfg),
        NavigationEnv(env_cfg, seed=settings["seed"], num_threads=settings["threads"]),
    )
    wall, cpu, out = [], [], env.reset()
    try:
        pilot.act(out["obs"])
        pilot.reset()
        for _ in range(settings["decisions"]):
            began = time.perf_counter(), time.process_time()
            action = pilot.act(out["obs"])
            wall.append(1e3 * (time.perf_counter() - began[0]))
            cpu.append(1e3 * (time.process_time() - began[1]))
            out = env.step(action)
            pilot.reset(out["terminated"] | out["truncated"])
    finally:
        torch.set_num_threads(old)
        env.close()
    return {
        name: {**{key: value for key, value in spread(times).items() if key != "turns"}, "mean": float(np.mean(times))}
        for name, times in (("wall_ms", wall), ("cpu_ms", cpu))
    }


def render(result: dict[str, Any]) -> list[RenderableType]:
    """Return the figures of `run` as rich renderables."""
    settings, found = result["settings"], result["parity"]["commands"]
    flown = f"{settings['num_envs']:,} drones among {settings['movers']} movers, {settings['threads']} threads"
    view = table("Time of one decision", "", "mean, ms", "median (quartiles), ms")
    for name, label in (("wall_ms", "clock"), ("cpu_ms", "all cores")):
        view.add_row(label, three_digits(result[name]["mean"]), shown(result[name]))
    agree = f"Commands unlike the plain planner's: {found['share_outside']:.1%} (allowed {found['allowed_share']:.0%})"
    return [machine_line(result["machine"], "start"), flown, agree, view]
