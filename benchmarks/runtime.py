"""`python -m benchmarks runtime`: flights in the simulator with the commands of fledge_runtime, beside the policy's own.

A deployment folder is written, and every drone gets a pilot, which reads what a robot would measure: the points that the
sensor's rays hit, tracked obstacles and odometry. The simulator flies its commands. At every decision they are compared with
those of Fledge's policy, which reads the simulator's observations. The same flights are then flown by the policy itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import RenderableType

from benchmarks.tables import machine_line, table, three_digits
from fledge.core.errors import ConfigError
from fledge.core.machine import machine_info
from fledge.core.settings import flat_settings
from fledge.deployment.api import deploy
from fledge.deployment.runtime import find_runtime
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.env_config import eval_env
from fledge.tasks.policy_factory import TrainedEnv
from fledge.tasks.policy_loader import LoadedPolicy, check_fit, load_policy

EQUAL_M_S = 1e-5  # commands that differ by less are equal
WAVE = 128  # flights at once
BINS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def run(
    policy: str = "fledge-nav",
    flights: int = 1000,
    first: int = 0,
    seed: int = 11,
    preset: str | None = "crossing",
    overrides: tuple[str, ...] = (),
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return how commands and outcomes of the runtime compare with those of the policy, and its time; JSON-able.

    Args:
        first: Number of the first flight, a multiple of WAVE: parts of a run are the same flights as the whole.
    """
    if first % WAVE:
        raise ConfigError(f"first={first} must be a multiple of {WAVE}, the flights that fly at once.")
    say = on_progress or (lambda line: None)
    find_runtime()
    from fledge_runtime.pilot import load

    begun, loaded = time.perf_counter(), load_policy(policy)
    cfg = loaded.task.policy.robot.recording_config(eval_env(loaded, preset, overrides).cfg)
    flown_in = dataclasses.replace(loaded, env=TrainedEnv(flat_settings(cfg)))
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, c_planner(Path(folder)):
        say(f"deploying {policy}")
        deployment = load(deploy(flown_in, Path(folder) / "deployed", progress=False).path)
        pilots = [deployment.pilot() for _ in range(min(WAVE, flights))]
        for start in range(first, first + flights, WAVE):
            count, wave = min(WAVE, first + flights - start), start // WAVE
            say(f"flight {start + 1} of {first + flights}")
            flown = fly(loaded, cfg, count, seed + wave, pilots[:count])
            own = fly(loaded, cfg, count, seed + wave, [])["outcomes"]
            found.append({**flown, "own": own, "flight": start + np.arange(count)})
        engine = getattr(deployment.planner(), "name", None)
    names = {value: name for value, name in loaded.task.env.outcomes.items() if value}  # type: ignore[union-attr]
    every = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    told = {"policy": policy, "flights": flights, "first": first, "seed": seed, "preset": preset}
    return {
        "machine": machine_info(),
        "settings": {**told, "overrides": list(overrides), "planner": engine},
        "commands": compare(every["gaps"]),
        "outcomes": outcomes(every["flight"], every["outcomes"], every["own"], names),
        "cpu_ms": percentiles(every["cpu_ms"]),
        "seconds": time.perf_counter() - begun,
    }


@contextlib.contextmanager
def c_planner(folder: Path) -> Iterator[None]:
    """Let pilots use the planner's C library, built in `folder` unless it was built before; without a compiler, NumPy."""
    from fledge_runtime import native

    library = native.load()
    if library is None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            library = native.load(native.build(folder / native.LIBRARY))
    with mock.patch.object(native, "load", return_value=library):
        yield


def fly(policy: LoadedPolicy, cfg: Any, count: int, seed: int, pilots: list[Any]) -> dict[str, Any]:
    """Fly one episode in each of `count` held-out envs, by pilots of the runtime, or by the policy if there are none.

    Return outcomes [count] and, with pilots, the differences of all commands from the policy's, m/s, and the CPU times of the
    pilots' decisions, ms.
    """
    made = policy.task.make_env(dataclasses.replace(cfg, num_envs=count), EnvPlacement(seed=seed, held_out=True))
    gaps, spans, ended = [], [], [0] * count
    with contextlib.closing(made) as env:
        check_fit(policy.agent, env)
        out, clock = env.reset(), 0.0
        policy.agent.reset()
        while not all(ended):
            action = policy.agent.act(out["obs"])
            assert isinstance(action, torch.Tensor)
            if pilots:
                gap, ms = steer(policy, env, out["obs"], action, pilots, ended, clock)
                gaps += gap
                spans += ms
            out, clock = env.step(action), clock + env.decision_s
            policy.agent.reset(out["terminated"] | out["truncated"])
            now = out["outcome"].tolist()
            ended = [old or int(new) for old, new in zip(ended, now, strict=True)]
    return {"outcomes": np.array(ended), "gaps": np.array(gaps), "cpu_ms": np.array(spans)}


def steer(
    policy: LoadedPolicy,
    env: TensorEnv,
    obs: Any,
    action: torch.Tensor,
    pilots: list[Any],
    ended: list[int],
    clock: float,
) -> tuple[list[float], list[float]]:
    """Replace the policy's actions of flights that have not ended by those of the pilots; return differences and times."""
    from fledge_runtime.inputs import Inputs

    flying = [i for i, over in enumerate(ended) if not over]
    readings, gaps, spans = policy.task.policy.robot.read(env, obs, flying), [], []
    for i in flying:
        pilot = pilots[i]
        if clock == 0.0:
            pilot.reset(readings.start_w[i], readings.goal_w[i])
        state = readings.position_w[i], readings.velocity_w[i], readings.quaternion_wxyz[i]
        given = Inputs(clock, *state, points_w=readings.points_w[i], movers=readings.movers[i])
        if "movers" not in pilot.contract["raw_inputs"]:
            given.movers = None
        before = time.thread_time()
        command = pilot.step(given)
        spans.append(1e3 * (time.thread_time() - before))
        gaps.append(float(np.abs(command.velocity_w - pilot.to_velocity(action[i].numpy())).max()))
        velocity_g = pilot.observer.to_goal_frame(command.velocity_w)
        action[i] = torch.as_tensor(0.5 * (velocity_g / pilot.speed_limit + 1.0), dtype=torch.float32)
    return gaps, spans


def compare(gaps: np.ndarray) -> dict[str, Any]:
    """Return the share of commands that are equal, and how far the others differ."""
    return {
        "decisions": len(gaps),
        "equal_share": float((gaps <= EQUAL_M_S).mean()),
        "unequal": int((gaps > EQUAL_M_S).sum()),
        "largest_m_s": float(gaps.max()),
        "above": {f"{limit:g}": int((gaps > limit).sum()) for limit in BINS},
    }


def outcomes(flight: np.ndarray, ours: np.ndarray, own: np.ndarray, names: dict[int, str]) -> dict[str, Any]:
    """Return counts of outcomes of both, in how many flights they are the same, and the flights in which they differ."""
    counts = {
        name: {"runtime": int((ours == value).sum()), "policy": int((own == value).sum())}
        for value, name in names.items()
    }
    differ = [
        {"flight": int(flight[k]), "runtime": names[int(ours[k])], "policy": names[int(own[k])]}
        for k in np.flatnonzero(ours != own)
    ]
    return {"flights": len(ours), "same": len(ours) - len(differ), "counts": counts, "differ": differ}


def percentiles(ms: np.ndarray) -> dict[str, float]:
    found = {f"p{p}": float(np.percentile(ms, p)) for p in (50, 99)}
    return {**found, "worst": float(ms.max())}


def render(result: dict[str, Any]) -> list[RenderableType]:
    """Return the figures of `run` as rich renderables."""
    commands, ends, ms = result["commands"], result["outcomes"], result["cpu_ms"]
    view = table("How flights ended", "", "runtime", "policy")
    for name, counts in ends["counts"].items():
        view.add_row(name, str(counts["runtime"]), str(counts["policy"]))
    others = [f"flight {one['flight']}: {one['runtime']}, policy {one['policy']}" for one in ends["differ"]]
    return [
        machine_line(result["machine"], "start"),
        f"{result['settings']['policy']}: {ends['flights']:,} flights, {commands['decisions']:,} decisions from readings in "
        f"{result['seconds']:.0f} s; planner: {result['settings']['planner']}",
        f"Commands: {commands['unequal']:,} of {commands['decisions']:,} differ from the policy's by more than {EQUAL_M_S:g} "
        f"m/s; the largest difference is {commands['largest_m_s']:.2g} m/s",
        f"Flights that end in the same way: {ends['same']:,} of {ends['flights']:,}",
        *others,
        view,
        "CPU time per decision, ms: " + ", ".join(f"{name} {three_digits(value)}" for name, value in ms.items()),
    ]
