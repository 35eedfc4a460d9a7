"""Checks of single parts on `cuda:0` (`host_cuda`); `test_faults.py` runs them in one process.

python -m tests.device.faults [NAME]...    prints {name: "" or the error} as JSON, a line for each
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.device import host_cuda
from tests.device.scenarios import make_run

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


@check
def the_lidar_encoder_computes_in_bf16() -> None:
    import torch

    from fledge.tasks.navigation.networks.lidar_encoder import LidarEncoder

    encoder, lidar = LidarEncoder().cuda(), torch.rand(64, 144, device="cuda")
    found = []
    for on in (False, True):
        encoder.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=on):
            y = encoder(lidar)
        y.float().square().sum().backward()
        grads = [p.grad.flatten() for p in encoder.parameters() if p.grad is not None]
        found.append((y.detach().float().flatten(), torch.cat(grads)))
    for exact, rounded in zip(*found, strict=True):
        assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.99
        assert not torch.equal(exact, rounded), "bf16 must round"


def noting(formats: set[Any]) -> Callable[..., Any]:
    """Return `F.linear`, which adds the format of each product to a set."""
    import torch

    real = torch.nn.functional.linear

    def linear(*args: Any) -> Any:
        product = real(*args)
        formats.add(product.dtype)
        return product

    return linear


def nan_error(work: Callable[[], Any]) -> Any:
    """Return the NumericsError of NaN that `work` raises."""
    from fledge.core.errors import NumericsError

    try:
        work()
    except NumericsError as error:
        assert "NaN" in str(error), error  # noqa: PT017 - this module runs without pytest
        return error
    raise AssertionError("NaN was not noticed")


@check
def every_network_learns_in_bf16_with_probabilities_and_returns_in_fp32() -> None:
    import torch

    from fledge.learn import objective, ppo, returns

    seen = set()

    def spy(function: Any) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            nested = [v for a in args for v in (a.values() if isinstance(a, dict) else [a])]
            found = [v for v in nested if isinstance(v, torch.Tensor) and v.is_floating_point()]
            result = function(*args, **options)
            for value in (*found, *result):
                assert value.dtype is torch.float32, (function.__name__, value.dtype)
            seen.add(function.__name__)
            return result

        return called

    for name in ("navrl", "fast", "recurrent", "duel", "duel_discrete"):
        run = make_run(name, "cuda", ["ppo.precision=bf16"])
        formats: set[Any] = set()
        with (
            mock.patch.object(ppo, "objective", spy(objective.objective)),
            mock.patch.object(ppo, "gae", spy(returns.gae)),
            mock.patch.object(torch.nn.functional, "linear", noting(formats)),
        ):
            losses = run.learn(run.collect())
        assert losses["total_loss"] < float("inf")
        assert torch.bfloat16 in formats, f"{name} did not compute in bf16"
        run.close()
    assert seen == {"objective", "gae"}


@check
def a_nan_dump_of_a_bf16_run_is_replayed_on_the_gpu_with_its_random_state() -> None:
    import torch

    from fledge.storage import load_checkpoint, save_checkpoint
    from fledge.training.nan_dump import dump_update, replay_update

    run = make_run("fast", "cuda", ["ppo.precision=bf16"])
    run.learn(run.collect())
    rollout = run.collect()
    sound, rollout["reward"][3, 5] = rollout["reward"].clone(), float("nan")
    with tempfile.TemporaryDirectory() as folder:
        path = dump_update(run, Path(folder), nan_error(lambda: run.learn(rollout))).dump
        assert path is not None
        nan_error(lambda: replay_update(path))
        state = load_checkpoint(path)
        assert "cuda_rng" in state["learner"], "minibatches are drawn on the GPU"
        state["rollout"]["reward"] = sound.cpu()
        mended = Path(folder) / "mended.fledge"
        save_checkpoint(state, mended)
        with mock.patch.object(torch.cuda, "set_rng_state", wraps=torch.cuda.set_rng_state) as restored:
            losses = replay_update(mended)
        assert restored.called
        torch.manual_seed(7)
        assert replay_update(mended) == losses
        assert replay_update(mended, device="cpu")["total_loss"] < float("inf")
    run.close()


@check
def a_nan_dump_of_replay_on_the_gpu_is_replayed_there() -> None:
    from fledge.training.nan_dump import dump_update, replay_update

    run = make_run("sac", "cuda")
    for _ in range(2):
        run.learn(run.collect())
    rollout = run.collect()
    rollout["reward"][:] = float("nan")
    with tempfile.TemporaryDirectory() as folder:
        path = dump_update(run, Path(folder), nan_error(lambda: [run.learn(rollout) for _ in range(8)])).dump
        assert path is not None
        for device in (None, "cpu"):
            nan_error(lambda device=device: replay_update(path, device=device))
    run.close()


@check
def a_nan_dump_of_an_env_on_the_gpu_is_replayed_there() -> None:
    import torch

    from fledge.tasks.navigation.config import NavigationConfig
    from fledge.tasks.navigation.env import NavigationEnv

    with tempfile.TemporaryDirectory() as folder:
        cfg = NavigationConfig(num_envs=4, num_maps=1, decimation=4, nan_guard=True, nan_dump_dir=folder)
        env = NavigationEnv(cfg, "cuda", seed=1)
        env.reset()
        env.state["vel"][2, 0] = float("nan")
        path = nan_error(lambda: env.step(torch.zeros(4, 3, device="cuda"))).dump
        again = NavigationEnv.replay_dump(path)
        assert again["obs"]["state"].is_cuda
        on_cpu = NavigationEnv.replay_dump(path, device="cpu")["obs"]["state"]
        assert not on_cpu.is_cuda
        assert again["obs"]["state"][2].cpu().isnan().any()
        assert torch.equal(again["obs"]["state"].cpu().nan_to_num(), on_cpu.nan_to_num())
        env.close()


@check
def what_ranks_send_each_other_is_in_host_memory() -> None:
    import pickle

    import torch
    import torch.distributed as dist

    from fledge.training import rank_parts
    from fledge.training.ranks import Ranks

    def refuse(*_: Any) -> Any:
        raise AssertionError("a CUDA tensor is pickled, which opens a context on its GPU in the receiver")

    sent: list[Any] = []
    part = {"own": torch.arange(6.0, device="cuda").view(2, 3), "rng": torch.get_rng_state(), "n": 3}
    reduce = torch.Tensor.__reduce_ex__
    with (
        mock.patch.object(torch.Tensor, "__reduce_ex__", lambda t, p: refuse() if t.is_cuda else reduce(t, p)),
        mock.patch.object(dist, "gather_object", lambda item, items: sent.append(pickle.dumps(item))),
        mock.patch.object(dist, "broadcast_object_list", lambda box: sent.append(pickle.dumps(box))),
        mock.patch.object(dist, "new_group", return_value=None),
        mock.patch.object(dist, "send", lambda tensor, *_, **__: sent.append(pickle.dumps(tensor))),
    ):
        Ranks(1, 2).gather(part)
        Ranks(1, 2).share(part)
        parts = rank_parts.RankParts(Ranks(1, 2))
        parts.send(part, 3)
        parts.close()
    assert len(sent) == 5
    assert torch.equal(pickle.loads(sent[0])["own"], part["own"].cpu())


@check
def policies_scripted_and_trained_are_evaluated_with_device_cuda() -> None:
    import torch

    import fledge
    from fledge.envs.launch import Launcher

    small = {"episodes": 8, "progress": False, "device": "cuda", "max_episode_steps": 40, "num_envs": 8}
    flown: set[str] = set()
    launch = Launcher.run
    with mock.patch.object(Launcher, "run", lambda self, p: flown.add(str(self.device)) or launch(self, p)):
        fledge.evaluate(["fledge-nav", "fledge-scan", "straight", "gap", "orca", "planner"], **small)
        policy = fledge.load_policy("fledge-nav")
        for shield in ("orca", "planner"):
            fledge.evaluate(policy, shield=shield, **small)
        assert policy.agent.device == torch.device("cpu"), "the caller's policy stays where it was"
        fledge.evaluate(["crank", "pursuit"], task="aircombat", episodes=4, progress=False, device="cuda")
        fledge.benchmark("crossing", "fledge-reflex", only=True, columns="0 movers", **small)
    assert "cuda:0" in flown


@check
def maps_drawn_in_parallel_on_a_side_stream_are_those_of_the_cpu() -> None:
    import torch

    from fledge.tasks.navigation.config import NavigationConfig, Starts
    from fledge.tasks.navigation.env import NavigationEnv

    small: dict[str, Any] = {"num_envs": 6, "decimation": 4, "static_obstacles": 60, "moving_obstacles": 4}
    refreshed = {"num_maps": 2, "map_refresh_steps": 16, "max_episode_steps": 60}
    for more in (
        refreshed,
        {"num_maps": 1, "walls": True, "starts": Starts.crossing},
        {"fresh_maps": True, "max_episode_steps": 40},
    ):
        found = []
        for device in ("cpu", "cuda"):
            env = NavigationEnv(NavigationConfig(**small, **more), device, seed=3)
            env.reset()
            for k in range(24):
                out = env.step(torch.full((6, 3), 0.1 * (k % 5), device=device))
            env.bank.wait()
            columns = [env.bank.columns[name] for name in ("edges", "tops", "first")]
            found.append([each.cpu() for each in (env.bank.grid, *columns, out["obs"]["lidar"], out["obs"]["state"])])
            env.close()
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b), more


if __name__ == "__main__":
    host_cuda.start()
    for name in sys.argv[1:] or CHECKS:
        error = ""
        try:
            CHECKS[name]()
            assert not host_cuda.faults, host_cuda.faults
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({name: error}), flush=True)
