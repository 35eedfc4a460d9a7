"""Run rollouts and updates of every task, learner and collector on `cuda:0` (`host_cuda`), and print what they did as JSON.

python -m tests.device.scenarios [NAME]...              NAME+wait, NAME+device: with a seeded fault, which must be found
python -m tests.device.scenarios --compare [NAME]...    differences from the same run on the CPU
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from tests.device import host_cuda

STEPS = 8  # decisions in a rollout
ENDS = ("episode_return", "episode_length")  # entries of a rollout that are valid only where an episode ended
RESULTS = ("reward", "terminated", "truncated", "outcome", *ENDS)
PPO = [f"ppo.rollout_steps={STEPS}", "ppo.minibatch=128", "ppo.epochs=1"]
REPLAY = [f"replay.steps={STEPS}", "replay.batch=64", "replay.warm_up=256", "replay.segment=4", "replay.updates=4"]
MIXED = ["league.ladder=[pursuit,crank,drag]", "league.advance=false", "league.past_selves=2"]
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
    "fresh_maps": ("navigation", "fast", ["env.fresh_maps=true", "env.map_refresh_steps=0", *PPO]),
    "refresh": ("navigation", "fast", ["env.map_refresh_steps=20", *PPO]),
    "short": (
        "navigation",
        "fast",
        ["env.max_episode_steps=25", "env.fresh_maps=true", "env.map_refresh_steps=0", *PPO],
    ),
    "voxels": ("navigation", "fast", ["env.world=rooms", "env.map_refresh_steps=0", *PPO]),
    "swarm": ("navigation", "fast", ["env=swarm", *PPO]),
    "p2m_halves": ("navigation", "fast", ["env=p2m", "env.decimation=5", "collect.mode=halves", *PPO]),
    "own_algorithm": ("navigation", "fast", ["algo=examples/a2c.py:A2C", f"algo_config.rollout_steps={STEPS}"]),
    "duel_mixed": ("aircombat", "fast", [*MIXED, *PPO]),
    "duel_exploiter": ("aircombat", "exploiter", PPO),
    "duel_recurrent": ("aircombat", "fast", ["policy.gru_size=16", *MIXED, *PPO]),
    "duel_pipelined": ("aircombat", "fast", ["collect.mode=pipelined", *PPO]),
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
        task, preset, [*settings, *(more or []), "env.num_envs=64", "total_frames=100000", f"device={device}"]
    )
    return TrainingState(cfg, Ranks(), task)


def measure(name: str) -> dict[str, Any]:
    """Return for one scenario: operators and launches per decision and gradient step, waits, and wrong devices."""
    host_cuda.faults.clear()
    name, _, fault = name.partition("+")
    run = make_run(name, "cuda")
    if fault:
        FAULTS[fault](run)
    steps = count_gradient_steps(run)
    for _ in range(3):  # fill the replay, record launches, allocate
        rollout = run.collect()
        run.learn(rollout)
        run.episode_metrics(rollout)
    parts: dict[str, host_cuda.Record] = {}
    with host_cuda.recording() as parts["collect"]:
        rollout = run.collect()
        run.collector.wait()  # for the batch that is collected meanwhile
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


def read_observations(run: Any) -> None:
    """Let the policy read an observation on the host in every decision, and in every gradient step."""
    encode, forward = run.policy.encode, run.policy.forward
    run.policy.encode = lambda obs: encode(obs) + 0.0 * float(obs["state"].sum())
    run.policy.forward = lambda x: forward(x + 0.0 * float(x.sum()))


def launch_on_the_host(run: Any) -> None:
    """Launch a kernel on the CPU with an array of the device."""
    import warp as wp

    from fledge.tasks.navigation.physics.episode import tick

    wp.launch(tick, 1, [0, 1, run.envs[0].bank.maps.clock], device="cpu")


FAULTS = {"wait": read_observations, "device": launch_on_the_host}


def compare(name: str, iterations: int = 2) -> dict[str, float]:
    """Return for each entry of the rollouts, and each loss, the largest difference between the device and the CPU.

    Differences are divided by the largest value of the entry, if that is above 1.
    """
    import torch

    runs = [make_run(name, device) for device in ("cpu", "cuda")]
    states, found = [torch.get_rng_state()] * 2, dict[str, float]()

    def note(key: str, *values: Any) -> None:
        want, got = (torch.as_tensor(value).double().cpu() for value in values)
        assert want.shape == got.shape, f"{key} is {tuple(got.shape)}, on the CPU {tuple(want.shape)}"
        if not want.numel():
            return
        gap = ((want - got).abs().max() / want.abs().max().clamp(min=1.0)).item()
        found[key] = max(found.get(key, 0.0), gap)

    for _ in range(iterations):
        seen = []
        for k, run in enumerate(runs):
            torch.set_rng_state(states[k])
            rollout = run.collect()
            run.collector.wait()
            data = {key: rollout[key].clone() for key in RESULTS} | {"obs": rollout["obs"].clone()}
            ended, known = data["outcome"] > 0, ~data["terminated"]
            data = {key: value[ended] if key in ENDS else value for key, value in data.items()}
            if "next_value" in rollout.keys():  # noqa: SIM118
                data |= {"value": rollout["value"].clone(), "next_value": rollout["next_value"][known]}
            losses = run.learn(rollout)
            seen.append((data, losses | run.episode_metrics(rollout)))
            states[k] = torch.get_rng_state()
        for key, value in seen[0][0].items():
            for inner in [None] if isinstance(value, torch.Tensor) else value.keys():
                note(
                    key if inner is None else f"{key}.{inner}",
                    *(s[0][key] if inner is None else s[0][key][inner] for s in seen),
                )
        for key in seen[0][1]:
            note(key, *(s[1][key] for s in seen))
    for run in runs:
        run.close()
    return found


def count_gradient_steps(run: Any) -> Counter[str]:
    """Return a counter whose entry `steps` grows with every optimiser step of a run."""
    steps: Counter[str] = Counter()
    first = next(iter(run.learner.optimizers.values()))
    first.register_step_post_hook(lambda *_: steps.update(steps=1))
    return steps


if __name__ == "__main__":
    host_cuda.start()
    compares = "--compare" in sys.argv
    for scenario in [name for name in sys.argv[1:] if not name.startswith("-")] or SCENARIOS:
        try:
            found = compare(scenario) if compares else measure(scenario)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            if len(sys.argv) == 2:
                raise
        print(json.dumps({scenario: found}), flush=True)
