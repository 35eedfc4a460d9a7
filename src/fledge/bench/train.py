"""Training speed: our loop beside the prior design, on the same env, network and hyper-parameters; and the fast preset.

First the results are compared: both networks must give the same outputs, and one update of each from the same rollout the
same losses. Then both are timed: ours as `fledge train` runs it, the prior design in this process with all threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import FledgeError
from fledge.core.machine import default_threads, keep_freed_memory, machine_info
from fledge.envs.base import TensorEnv
from fledge.learn.ppo import PPO
from fledge.tasks.registry import find_task
from fledge.train.config import TrainConfig, make_config

TOLERANCE = 1e-4
TASK: Any = find_task("navigation")


def run(
    iterations: int = 5,
    num_envs: int = 1024,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return frames per second of both loops, their shares, and the ratio."""
    say = on_progress or (lambda text: None)
    say("checking that both designs compute the same")
    agreement = check_agreement(seed)
    say("our loop, NavRL's setting")
    ours = time_fledge("navrl", iterations, num_envs, seed)
    say("the prior design, NavRL's setting")
    prior = time_prior(iterations, num_envs, seed)
    say("our loop, fast preset")
    fast = time_fledge("fast", iterations, num_envs, seed)
    peak = matmul_peak()
    learned = num_envs * 32 * 4  # samples per update: epochs x rollout
    from fledge.bench.baselines.prior_training import network_flops

    flops = 3 * network_flops() * learned  # backward costs twice the forward
    return {
        "machine": machine_info(),
        "agreement": agreement,
        "num_envs": num_envs,
        "fledge": ours,
        "prior": prior,
        "ratio": ours["frames_per_second"] / prior["frames_per_second"],
        "ratio_collect": prior["collect_s"] / ours["collect_s"],
        "ratio_learn": prior["learn_s"] / ours["learn_s"],
        "fast": fast,
        "matmul_peak_gflops": peak / 1e9,
        "update_share_of_peak": {
            "fledge": flops / ours["learn_s"] / peak,
            "prior": flops / prior["learn_s"] / peak,
        },
    }


def navrl_config(num_envs: int, seed: int) -> TrainConfig:
    words = [f"env.num_envs={num_envs}", f"seed={seed}"]
    return make_config(TASK, "navrl", words)


def check_agreement(seed: int) -> dict[str, float]:
    """Compare networks and one full update of both designs from the same rollout; refuse to time what disagrees."""
    from tensordict import TensorDict

    from fledge.bench.baselines.prior_training import PriorTraining

    cfg = navrl_config(32, seed)
    # one step on all samples, so that their order does not matter
    cfg.ppo.minibatch, cfg.ppo.epochs = 32 * 32, 1
    torch.manual_seed(seed)
    published = TASK.references.NavRLPolicy()
    folded = TASK.references.NavRLActorCritic.from_navrl(published)
    env = TASK.make_env(cfg.env, seed=seed)
    rollout = SyncDataCollector(env, folded, 32 * 32).rollout().clone()
    prior = PriorTraining(TASK.make_env(cfg.env, seed=seed), published, cfg.ppo)
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
    theirs = prior.update(data)
    learner = PPO(folded, cfg.ppo)
    # where an episode ended, both designs must value the same thing; next_value is the collector's
    learner.update(rollout)
    loss = float(learner.last_loss)
    prior.close()
    env.close()
    result = {"network_max_difference": outputs, "loss_fledge": loss, "loss_prior": theirs}
    if outputs > TOLERANCE or abs(loss - theirs) > 1e-3 * abs(theirs):
        raise FledgeError(f"The two designs disagree, so there is nothing to time: {result}.")
    return result


def env_obs(env: TensorEnv, key: str) -> torch.Tensor:
    """Observation `key` of the env as it stands."""
    mask = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    return env.reset(mask)["obs"][key]


def time_fledge(preset: str, iterations: int, num_envs: int, seed: int) -> dict[str, Any]:
    """Run `fledge train` for some iterations and read its own figures (the first two iterations warm up)."""
    cfg = make_config(TASK, preset)
    frames = (iterations + 2) * num_envs * cfg.steps
    with tempfile.TemporaryDirectory() as folder:
        run_folder = Path(folder) / "run"
        words = [f"env.num_envs={num_envs}", f"total_frames={frames}", f"seed={seed}", "tensorboard=false"]
        command = [
            sys.executable,
            "-m",
            "fledge.cli",
            "train",
            "navigation",
            *words,
            "--preset",
            preset,
            "--folder",
            str(run_folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise FledgeError(f"`fledge train` failed: {done.stderr.strip().splitlines()[-1]}")
        rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()][2:]
    times = {name: np.array([row[name] for row in rows]) for name in ("collect_s", "learn_s", "simulate_s")}
    total = times["collect_s"] + times["learn_s"]
    rates = num_envs * cfg.steps / total
    return {
        "frames_per_second": float(np.median(rates)),
        "p10": float(np.quantile(rates, 0.1)),
        "p90": float(np.quantile(rates, 0.9)),
        "collect_s": float(np.median(times["collect_s"])),
        "learn_s": float(np.median(times["learn_s"])),
        "shares": {
            "simulate": float((times["simulate_s"] / total).mean()),
            "act": float(((times["collect_s"] - times["simulate_s"]) / total).mean()),
            "learn": float((times["learn_s"] / total).mean()),
        },
        "ranks": default_threads(),
        "iterations": len(rows),
    }


def time_prior(iterations: int, num_envs: int, seed: int) -> dict[str, Any]:
    """Time the prior design in this process, with as many threads as there are cores."""
    from fledge.bench.baselines.prior_training import PriorTraining

    keep_freed_memory()  # our allocator setting, so that it is not what makes the difference
    cfg = navrl_config(num_envs, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(default_threads())
    torch.manual_seed(seed)
    loop = PriorTraining(TASK.make_env(cfg.env, seed=seed), TASK.references.NavRLPolicy(), cfg.ppo)
    rows = []
    try:
        for row in loop.iterations():
            rows.append(row)
            if len(rows) == iterations + 2:
                break
    finally:
        loop.close()
        torch.set_num_threads(threads)
    collect, learn = (np.array([row[k] for row in rows[2:]]) for k in ("collect", "learn"))
    rates = num_envs * cfg.steps / (collect + learn)
    return {
        "frames_per_second": float(np.median(rates)),
        "p10": float(np.quantile(rates, 0.1)),
        "p90": float(np.quantile(rates, 0.9)),
        "collect_s": float(np.median(collect)),
        "learn_s": float(np.median(learn)),
        "threads": default_threads(),
        "iterations": len(rows) - 2,
    }


def matmul_peak(size: int = 1024, seconds: float = 1.0) -> float:
    """Best float32 matrix-multiply rate of this machine with all cores, FLOP/s."""
    threads = torch.get_num_threads()
    torch.set_num_threads(default_threads())
    a, b = torch.randn(size, size), torch.randn(size, size)
    best, begun = 0.0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        torch.mm(a, b)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    torch.set_num_threads(threads)
    return best


def render(result: dict[str, Any]) -> list[Any]:
    """The figures as tables."""
    table = Table(title=f"NavRL's setting: {result['num_envs']} drones, its network and hyper-parameters")
    for heading in ("design", "decisions/s", "collect, s", "learn, s", "share of matmul peak"):
        table.add_column(heading, justify="left" if heading == "design" else "right")
    for name, label in (("fledge", "Fledge"), ("prior", "TorchRL collector, Conv2d")):
        row = result[name]
        share = result["update_share_of_peak"][name]
        rate = f"{row['frames_per_second']:,.0f} ({row['p10']:,.0f} to {row['p90']:,.0f})"
        table.add_row(label, rate, f"{row['collect_s']:.2f}", f"{row['learn_s']:.2f}", f"{share:.0%}")
    fast = result["fast"]
    shares = ", ".join(f"{k} {v:.0%}" for k, v in fast["shares"].items())
    lines = [
        f"ratio {result['ratio']:.2f} (collecting {result['ratio_collect']:.2f}, learning {result['ratio_learn']:.2f})",
        f"fast preset: {fast['frames_per_second']:,.0f} decisions/s on {fast['ranks']} cores; {shares}",
        f"matmul peak {result['matmul_peak_gflops']:.0f} GFLOP/s",
    ]
    return [table, *lines]
