"""Train with and without CUDA graphs on the device without a GPU (`host_cuda`), and print as JSON where they differ.

python -m tests.device.captured NAME...

Every training has episodes that end, schedules and a curriculum that move, and a checkpoint from which another goes on.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.device import host_cuda, scenarios

ITERATIONS = 4
SHORT = {"navigation": ["env.max_episode_steps=24"], "aircombat": ["env.max_episode_s=12"]}


def train(name: str, captured: bool, resumed: bool) -> tuple[list[dict[str, Any]], Any]:
    """Return every rollout, the metrics, the weights and the random state of each iteration; and the last run.

    Args:
        resumed: Continue in another run after half of the iterations, from a checkpoint.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    os.environ["FLEDGE_CUDA_GRAPHS"] = str(int(captured))
    run, seen = scenarios.make_run(name, "cuda"), []
    for iteration in range(ITERATIONS):
        if resumed and iteration == ITERATIONS // 2:
            saved = tree_map_only(
                torch.Tensor, lambda tensor: tensor.cpu().clone(), run.state_dict()
            )  # as a file has it
            run.close()
            run = scenarios.make_run(name, "cuda")
            run.load_state_dict(saved)
        rollout = run.collect()
        entries = {str(k): v.cpu().clone() for k, v in rollout.items(include_nested=True, leaves_only=True)}
        losses = run.learn(rollout)
        metrics = run.episode_metrics(rollout) | losses
        weights = {f"weights of {k}": v.cpu().clone() for k, v in run.policy.state_dict().items()}
        seen.append({**entries, **weights, "metrics": metrics, "rng": torch.get_rng_state()})
    run.close()
    return seen, run


def compare(name: str) -> dict[str, Any]:
    """Return what differs between trainings with and without graphs, and how many graphs there were."""
    import torch

    from tests.device import host_graphs

    task, preset, settings = scenarios.SCENARIOS[name]
    scenarios.SCENARIOS[name] = (task, preset, [*settings, *SHORT[task], f"total_frames={64 * 8 * ITERATIONS}"])
    plain, _ = train(name, captured=False, resumed=False)
    result: dict[str, Any] = {"ended": sum(int(step["terminated"].sum() + step["truncated"].sum()) for step in plain)}
    result["rates"] = sorted({step["metrics"]["lr"] for step in plain})
    for resumed in (False, True):
        before = host_graphs.replays
        found, run = train(name, captured=True, resumed=resumed)
        wrong = [
            f"{key} in iteration {k}"
            for k, (a, b) in enumerate(zip(plain, found, strict=True))
            for key in a
            if not (torch.equal(a[key], b[key]) if isinstance(a[key], torch.Tensor) else a[key] == b[key])
        ]
        pools = [run.learner.steps.graphs, getattr(run.collector, "_graphs", None)]
        result["resumed" if resumed else "captured"] = {
            "wrong": wrong,
            "replays": host_graphs.replays - before,
            "fell_back": any(pool is not None and not pool.enabled for pool in pools),
        }
    return result


def check_stand_in() -> dict[str, Any]:
    """Return how graphs of small functions behave, by name."""
    import torch
    import warp as wp

    from fledge.core.cuda_graphs import CudaGraphs
    from fledge.tasks.navigation.physics.episode import tick
    from tests.device import host_graphs

    number = 0.0
    total, device_number = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
    drawn, kept = torch.zeros(4, device="cuda"), list[Any]()

    def add_python() -> None:
        total.fill_(number)

    def add_tensor() -> None:
        total.add_(device_number)

    def draw() -> None:
        drawn.copy_(torch.randn(4, device="cuda"))
        kept[:] = [drawn + 1]

    found: dict[str, Any] = {}
    for name, function in (("a value of Python stays", add_python), ("a tensor's value does not", add_tensor)):
        captured, values = CudaGraphs("cuda").captured(function), []
        total.zero_()
        for number in (1.0, 2.0, 3.0, 4.0, 5.0):
            device_number.fill_(number)
            captured()
            values.append(float(total))
        found[name] = values
    plain, captured = list[Any](), CudaGraphs("cuda").captured(draw)
    for function in (draw, captured):
        torch.manual_seed(1)
        for _ in range(4):
            function()
            plain.append(drawn.tolist())
    found["random numbers go on"] = plain[:4] == plain[4:] and plain[0] != plain[1]
    found["memory of the graph is overwritten"] = bool(kept[0].isnan().all())

    clock = wp.from_torch(torch.zeros(1, dtype=torch.int32, device="cuda"))
    generator = torch.Generator("cuda")
    refused = {
        "item": lambda: total.item(),
        "mask": lambda: drawn[drawn > 0],
        "copy": lambda: total.copy_(torch.zeros(())),
        "generator": lambda: drawn.normal_(generator=generator),
        "stream": lambda: wp.launch(tick, 1, [0, 1, clock], device="cuda"),
    }
    for name, function in refused.items():
        captured = CudaGraphs("cuda").captured(function)
        captured()
        captured()
        found[f"refused: {name}"] = captured.graph is None and not captured.graphs.enabled  # type: ignore[attr-defined]
    found["off after a failure"] = not host_graphs.active
    before = float(total)
    captured = CudaGraphs("cuda").captured(lambda: (total.add_(1.0), total.item()))  # type: ignore[arg-type, return-value]
    for _ in range(3):
        captured()
    found["ran after a failure"] = float(total) == before + 3.0
    return found


def check_features() -> dict[str, Any]:
    """Return the largest difference of the fused features from those in torch, for scans of two ranges."""

    from fledge.tasks.navigation.networks import feature_kernel, feature_policy

    found: dict[str, Any] = {}
    for range_m, rays in ((4.0, (36, 4)), (8.0, (20, 1))):
        obs = feature_policy.example_flight(500, rays, range_m, seed=3)
        plain = feature_policy.navigation_features(obs, range_m)
        there = {name: value.to("cuda") for name, value in obs.items()}
        assert feature_kernel.is_fused(there)
        assert not feature_kernel.is_fused(obs)
        fused = feature_policy.navigation_features(there, range_m).cpu()
        found[f"{range_m:g} m"] = float(((fused - plain).abs() / (1 + plain.abs())).max())
        there["state"].requires_grad_()
        found[f"{range_m:g} m, with gradient"] = not feature_kernel.is_fused(there)
    return found


CHECKS = {"stand_in": check_stand_in, "features": check_features}

if __name__ == "__main__":
    host_cuda.start()
    for scenario in sys.argv[1:]:
        found = CHECKS[scenario]() if scenario in CHECKS else compare(scenario)
        print(json.dumps({scenario: found}), flush=True)
