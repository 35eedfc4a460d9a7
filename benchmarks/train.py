"""`python -m benchmarks train`: training speed beside a TorchRL loop with the same env, network and hyper-parameters.

Results are compared first: both networks must give the same outputs, and one update of each from the same rollout the same
loss. Then the designs take turns: Fledge as `fledge train` runs it (a process of its own, one rank per core); the TorchRL
loop (`baselines/torchrl_training.py`) in this process with torch on one thread, and with torch on all threads (its simulator
has all cores in both); Fledge with the fast preset. Each turn begins with iterations that are not counted. The baseline is
the faster of the two TorchRL rows; both are shown. Times include collecting and learning, not logging or saving.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.tables import machine_line, shown, table
from benchmarks.turns import ratio, spread
from fledge.agents.linear import linear_in_training
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import FledgeError, InputError
from fledge.core.machine import default_threads, keep_freed_memory, machine_info
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.learn.ppo import PPO
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic, NavRLPolicy
from fledge.tasks.registry import find_task
from fledge.training.config import TrainConfig, make_config

TOLERANCE = 1e-4
WARM_UP = 1  # iterations at the start of every turn that are not counted
TASK: Any = find_task("navigation")
Turn = dict[str, float]  # seconds per iteration, and decisions per second


def run(
    turns: int = 5,
    iterations: int = 2,
    num_envs: int = 1024,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return decisions per second of all designs, turn by turn, and their ratios; JSON-able.

    Args:
        turns: Turns per design.
        iterations: Iterations counted in each turn.
        num_envs: Drones.
        seed: Random seed of weights, maps and flights.
        on_progress: Called with a line before each part.

    Raises:
        FledgeError: if the two designs disagree; nothing is timed then.
    """
    if turns < 1 or iterations < 1:
        raise InputError(f"turns is {turns} and iterations {iterations}, but both must be at least 1.")
    say = on_progress or (lambda text: None)
    say("checking that both designs compute the same")
    parity = check_parity(seed)
    say("starting the TorchRL loop")
    with torchrl_loop(num_envs, seed) as torchrl:
        designs: dict[str, Callable[[], Turn]] = {"fledge": lambda: time_fledge("navrl", iterations, num_envs, seed)}
        for threads in sorted({1, default_threads()}):
            designs[f"torchrl_{threads}"] = lambda threads=threads: torchrl(threads, iterations)  # type: ignore[misc]
        designs["fast"] = lambda: time_fledge("fast", iterations, num_envs, seed)
        rows: dict[str, list[Turn]] = {name: [] for name in designs}
        for turn in range(turns):
            for name, take_turn in designs.items():
                say(f"turn {turn + 1} of {turns}: {label(name)}")
                rows[name].append(take_turn())
    say("the machine's best rate of multiplying matrices")
    settings = {"num_envs": num_envs, "turns": turns, "iterations": iterations, "warm_up": WARM_UP, "seed": seed}
    settings["cores"] = default_threads()
    return {"machine": machine_info(), "settings": settings, "parity": parity} | figures(rows, matmul_peak(), num_envs)


def figures(rows: dict[str, list[Turn]], peak: float, num_envs: int) -> dict[str, Any]:
    """Return medians and quartiles of every design, the name of the baseline, and the ratios turn by turn."""
    from benchmarks.baselines.torchrl_training import network_flops

    every = {name: {key: [turn[key] for turn in turns] for key in turns[0]} for name, turns in rows.items()}
    designs = {name: {key: spread(values) for key, values in found.items()} for name, found in every.items()}
    loops = [name for name in designs if name.startswith("torchrl")]
    baseline = max(loops, key=lambda name: designs[name]["decisions_per_second"]["median"])
    for name in loops:
        designs[name]["fledge_faster_by"] = {
            "whole": ratio(every["fledge"]["decisions_per_second"], every[name]["decisions_per_second"]),
            "collecting": ratio(every[name]["collect_s"], every["fledge"]["collect_s"]),
            "learning": ratio(every[name]["learn_s"], every["fledge"]["learn_s"]),
        }
    ppo = navrl_config(num_envs, 0).ppo
    flops = 3 * network_flops() * num_envs * ppo.rollout_steps * ppo.epochs  # backward costs twice the forward
    shares = {name: round(flops / designs[name]["learn_s"]["median"] / peak, 4) for name in ("fledge", *loops)}
    return {
        "designs": designs,
        "baseline": baseline,
        "ratio": designs[baseline]["fledge_faster_by"]["whole"],
        "matmul_peak_gflops": peak / 1e9,
        "update_share_of_peak": shares,
    }


def label(name: str) -> str:
    """Return the printed name of a design."""
    if name.startswith("torchrl_"):
        return f"TorchRL, torch threads: {name.removeprefix('torchrl_')}"
    return {"fledge": "Fledge", "fast": "Fledge, fast preset"}[name]


def navrl_config(num_envs: int, seed: int) -> TrainConfig:
    return make_config(TASK, "navrl", [f"env.num_envs={num_envs}", f"seed={seed}"])


def check_parity(seed: int) -> dict[str, float]:
    """Compare the networks and one full update of both designs from the same rollout; raise FledgeError if they differ."""
    from tensordict import TensorDict

    from benchmarks.baselines.torchrl_training import TorchRLTraining

    cfg = navrl_config(32, seed)
    # one step on all samples, so that their order does not matter
    cfg.ppo.minibatch, cfg.ppo.epochs = 32 * 32, 1
    torch.manual_seed(seed)
    published = NavRLPolicy()
    folded = NavRLActorCritic.from_navrl(published)
    env = TASK.make_env(cfg.env, EnvPlacement(seed=seed))
    rollout = SyncDataCollector(env, folded, 32 * 32).rollout().clone()
    baseline = TorchRLTraining(TASK.make_env(cfg.env, EnvPlacement(seed=seed)), published, cfg.ppo)
    rows = {k: v.transpose(0, 1) for k, v in rollout["obs"].items()}
    with torch.no_grad():
        alpha, beta, _ = published({k: v.reshape(-1, *v.shape[2:]) for k, v in rows.items()})
        params, _ = folded(rollout["input"].transpose(0, 1).reshape(-1, folded.inputs))
    outputs = max(float((alpha - params[0]).abs().max()), float((beta - params[1]).abs().max()))
    turned = {k: rollout[k].transpose(0, 1).unsqueeze(-1) for k in ("reward", "terminated", "truncated")}
    turned["done"] = turned["terminated"] | turned["truncated"]
    next_obs = {k: torch.cat([v[:, 1:], env_obs(env, k)[:, None]], 1) for k, v in rows.items()}
    data = TensorDict(
        {
            **rows,
            "action": rollout["action"].transpose(0, 1),
            "log_prob": rollout["log_prob"].transpose(0, 1).unsqueeze(-1),
            "state_value": rollout["value"].transpose(0, 1).unsqueeze(-1),
            "next": TensorDict({**turned, **next_obs}, [32, 32]),
        },
        [32, 32],
    )
    theirs = baseline.update(data)
    learner = PPO(folded, cfg.ppo)
    # where an episode ended, both designs must bootstrap from the same value; next_value is the collector's
    learner.update(rollout)
    loss = float(learner.last_loss)
    baseline.close()
    env.close()
    result = {"network_max_difference": outputs, "loss_fledge": loss, "loss_torchrl": theirs}
    if outputs > TOLERANCE or abs(loss - theirs) > 1e-3 * abs(theirs):
        raise FledgeError(f"The two designs disagree, so nothing was timed: {result}.")
    return result


def env_obs(env: TensorEnv, key: str) -> torch.Tensor:
    """Return observation `key` of the env in its current state."""
    mask = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    return env.reset(mask)["obs"][key]


def time_fledge(preset: str, iterations: int, num_envs: int, seed: int) -> Turn:
    """Run `fledge train` for some iterations and return the figures that it logged."""
    cfg = make_config(TASK, preset)
    frames = (iterations + WARM_UP) * num_envs * cfg.steps
    with tempfile.TemporaryDirectory() as folder:
        run_folder = Path(folder) / "run"
        overrides = [f"env.num_envs={num_envs}", f"total_frames={frames}", f"seed={seed}", "tensorboard=false"]
        command = [sys.executable, "-m", "fledge.cli", "train", "navigation", *overrides, "--preset", preset]
        done = subprocess.run([*command, "--folder", str(run_folder)], capture_output=True, text=True)
        if done.returncode:
            raise FledgeError(f"`fledge train` failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    counted = rows[WARM_UP:]
    seconds = rows[-1]["seconds"] - rows[WARM_UP - 1]["seconds"]  # of whole iterations, not only of their two parts
    parts = {name: float(np.mean([row[name] for row in counted])) for name in ("collect_s", "learn_s", "simulate_s")}
    return {"decisions_per_second": len(counted) * num_envs * cfg.steps / seconds, **parts}


@contextmanager
def torchrl_loop(num_envs: int, seed: int) -> Iterator[Callable[[int, int], Turn]]:
    """Yield a function that continues the TorchRL loop for some iterations with torch on some threads."""
    from benchmarks.baselines.torchrl_training import TorchRLTraining

    keep_freed_memory()  # the allocator setting that Fledge trains with
    cfg = navrl_config(num_envs, seed)
    before = torch.get_num_threads()
    torch.manual_seed(seed)
    loop = TorchRLTraining(TASK.make_env(cfg.env, EnvPlacement(seed=seed)), NavRLPolicy(), cfg.ppo)
    steps = loop.iterations()

    def take_turn(threads: int, iterations: int) -> Turn:
        torch.set_num_threads(threads)
        rows = [next(steps) for _ in range(WARM_UP + iterations)][WARM_UP:]
        collect, learn = (float(np.mean([row[k] for row in rows])) for k in ("collect", "learn"))
        rate = num_envs * cfg.steps / (collect + learn)
        return {"decisions_per_second": rate, "collect_s": collect, "learn_s": learn}

    try:
        yield take_turn
    finally:
        loop.close()
        torch.set_num_threads(before)


def matmul_peak(sizes: tuple[int, ...] = (256, 512, 1024), seconds: float = 1.0) -> float:
    """Return the best float32 matrix-multiply rate of this machine with all cores, FLOP/s, by MKL or oneDNN."""
    threads = torch.get_num_threads()
    torch.set_num_threads(default_threads())
    best, begun = 0.0, time.perf_counter()
    pairs = [(torch.randn(1024, size), torch.randn(size, size), torch.zeros(size)) for size in sizes]
    while time.perf_counter() - begun < seconds:
        for a, b, bias in pairs:
            for product in (F.linear, linear_in_training):
                start = time.perf_counter()
                product(a, b, bias)
                best = max(best, 2 * len(a) * b.numel() / (time.perf_counter() - start))
    torch.set_num_threads(threads)
    return best


def render(result: dict[str, Any]) -> list[Any]:
    """Return the figures as tables."""
    settings = result["settings"]
    title = (
        f"{settings['num_envs']} drones, {settings['turns']} turns of {settings['iterations']} iterations (quartiles)"
    )
    speeds = table(title, "design", "decisions/s", "collect, s", "learn, s", "of peak")
    faster = table("Fledge is faster than the TorchRL loop by", "torch threads", "whole", "collecting", "learning")
    for name, row in result["designs"].items():
        share = result["update_share_of_peak"].get(name)
        times = [f"{row[key]['median']:.2f}" for key in ("collect_s", "learn_s")]
        rate = shown(row["decisions_per_second"])
        speeds.add_row(label(name), rate, *times, f"{share:.0%}" if share else "")
        if "fledge_faster_by" in row:
            mark = " (the better)" if name == result["baseline"] else ""
            ratios = [shown(found) for found in row["fledge_faster_by"].values()]
            faster.add_row(name.removeprefix("torchrl_") + mark, *ratios)
    return [
        machine_line(result["machine"], "end"),
        "NavRL's network and hyper-parameters. TorchRL: its collector, Conv2d, TensorDict minibatches.",
        "Fledge: its default, one process per core with one torch thread each; all designs have the same cores.",
        speeds,
        faster,
        f"of peak: of {result['matmul_peak_gflops']:.0f} GFLOP/s, the best float32 matrix product with all cores here",
    ]
