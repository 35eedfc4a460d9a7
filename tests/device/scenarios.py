"""Run rollouts and updates of every task, learner and collector on `cuda:0` (`host_cuda`), and print what they did as JSON.

python -m tests.device.scenarios [NAME]...       FLEDGE_CUDA_GRAPHS=0: without CUDA graphs
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from tests.device import host_cuda

STEPS = 8  # decisions in a rollout
PPO = [f"ppo.rollout_steps={STEPS}", "ppo.minibatch=128", "ppo.epochs=1"]
REPLAY = [f"replay.steps={STEPS}", "replay.batch=64", "replay.warm_up=256", "replay.segment=4", "replay.updates=4"]
DUELS = ["league.ladder=[pursuit,crank]", "league.advance=false"]

# name -> task, preset, settings
SCENARIOS: dict[str, tuple[str, str | None, list[str]]] = {
    "fast": ("navigation", "fast", PPO),
    "navrl": ("navigation", "navrl", PPO),
    "planned": ("navigation", "planned", PPO),
    "p2m": ("navigation", "fast", ["env=p2m", "env.decimation=5", *PPO]),
    "typical": ("navigation", "fast", ["perception=typical", *PPO]),
    "lidar": ("navigation", "fast", ["sensor=mid360", "env.movers_from=lidar", *PPO]),
    "pedestrians": ("navigation", "fast", ["env.movers=pedestrians", *PPO]),
    "recurrent": ("navigation", "fast", ["policy.gru_size=16", *PPO]),
    "pipelined": ("navigation", "fast", ["collect.mode=pipelined", *PPO]),
    "halves": ("navigation", "fast", ["collect.mode=halves", *PPO]),
    "compressed": ("navigation", "fast", ["collect.compression_level=1", *PPO]),
    "sac": ("navigation", "sac", REPLAY),
    "td3": ("navigation", "td3", REPLAY),
    "dqn": ("navigation", "dqn", REPLAY),
    "duel": ("aircombat", "fast", PPO),
    "duel_league": ("aircombat", "league", [*DUELS, *PPO]),
    "duel_discrete": ("aircombat", "fast", ["env.action_form=discrete", *PPO]),
    "duel_dqn": ("aircombat", "dqn", REPLAY),
}


def make_run(name: str, device: str, more: list[str] | None = None) -> Any:
    import torch

    from fledge.tasks.registry import find_task
    from fledge.training.config import make_config
    from fledge.training.ranks import Ranks
    from fledge.training.run import TrainingState

    task_name, preset, settings = SCENARIOS[name]
    torch.manual_seed(0)
    task = find_task(task_name)
    cfg = make_config(
        task, preset, ["total_frames=100000", *settings, *(more or []), "env.num_envs=64", f"device={device}"]
    )
    return TrainingState(cfg, Ranks(), task)


def measure(name: str) -> dict[str, Any]:
    """Return for one scenario: operators and launches per decision and gradient step, waits, and wrong devices."""
    host_cuda.faults.clear()
    run = make_run(name, "cuda")
    steps = count_gradient_steps(run)
    for _ in range(3):  # fill the replay, record launches, allocate
        run.learn(run.collect())
    parts: dict[str, host_cuda.Record] = {}
    with host_cuda.recording() as parts["collect"]:
        rollout = run.collect()
    steps.clear()
    with host_cuda.recording() as parts["learn"]:
        run.learn(rollout)
    with host_cuda.recording() as parts["metrics"]:
        run.episode_metrics(rollout)
    per = {"collect": run.cfg.steps, "learn": max(1, steps["steps"]), "metrics": 1}
    result = {
        part: {
            "ops": record.ops.total() / per[part],
            "launches": record.launches.total() / per[part],
            "waits": {f"{kind} at {place}": count for (kind, place), count in record.syncs.items()},
        }
        for part, record in parts.items()
    }
    run.close()
    return {**result, "faults": sorted(set(host_cuda.faults))}


def count_gradient_steps(run: Any) -> Counter[str]:
    """Return a counter whose entry `steps` grows with every gradient step of a run."""
    steps: Counter[str] = Counter()
    if hasattr(run.learner, "steps"):  # PPO, whose optimiser may be in a CUDA graph
        average, run.learner.flat.average_grads = run.learner.flat.average_grads, lambda ranks: count(ranks)

        def count(ranks: int) -> None:
            steps.update(steps=1)
            average(ranks)

        return steps
    first = next(iter(run.learner.optimizers.values()))
    first.register_step_post_hook(lambda *_: steps.update(steps=1))
    return steps


if __name__ == "__main__":
    host_cuda.start()
    for scenario in sys.argv[1:] or SCENARIOS:
        try:
            found = measure(scenario)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            if len(sys.argv) == 2:
                raise
        print(json.dumps({scenario: found}), flush=True)
