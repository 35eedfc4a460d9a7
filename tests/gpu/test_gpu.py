"""The GPU computes what a CPU does, also with graphs, on other streams, while a checkpoint is saved, and with other GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fledge.storage import AsyncCheckpointSaver, load_checkpoint
from tests.gpu.runs import SMALL, TASKS, graphs, make_run, state_of, train

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("name", TASKS)
def test_envs_on_the_gpu_fly_as_on_the_cpu(name: str) -> None:
    """Fixed actions, so that both see the same flight; after 20 decisions rounding has not grown to more than this."""
    seen = []
    for device in ("cpu", "cuda"):
        run = make_run(name, device, SMALL)
        env = run.envs[0]
        env.reset()
        action = run.policy.head.to_env(torch.full((env.num_envs, run.policy.head.width), 0.4, device=env.device))
        if not isinstance(action, torch.Tensor):
            action = {k: torch.zeros_like(v) if v.dtype == torch.int64 else v for k, v in action.items()}
        for _ in range(20):
            out = env.step(action)
        seen.append({k: v.cpu().double() for k, v in out["obs"].items()})
        run.close()
    for key, on_cpu in seen[0].items():
        wrong = ((on_cpu - seen[1][key]).abs() > 1e-3 * (1 + on_cpu.abs())).double().mean()
        assert wrong < 0.01, f"{key} differs in {wrong:.1%} of its values"  # a beam that just misses an edge may differ


@pytest.mark.parametrize("name", TASKS)
def test_ppo_on_the_gpu_learns_as_on_the_cpu(name: str) -> None:
    run = make_run(name, "cpu", SMALL)
    rollout, state = run.collect(), {k: v.clone() for k, v in run.policy.state_dict().items()}
    other = make_run(name, "cuda", [*SMALL, "ppo.precision=fp32", "ppo.minibatch=4096", "ppo.epochs=1"])
    one = make_run(
        name, "cpu", [*SMALL, "ppo.minibatch=4096", "ppo.epochs=1"]
    )  # a step each: the order of samples is another
    reports = []
    for each in (one, other):
        each.policy.load_state_dict(state)
        reports.append(each.learner.update(rollout.to(each.device), 0.0))
    for key, value in reports[0].items():
        assert reports[1][key] == pytest.approx(value, rel=2e-3, abs=2e-4), key
    for each in (run, one, other):
        each.close()


@pytest.mark.parametrize("name", TASKS)
def test_graphs_compute_what_the_same_operations_compute_without(name: str) -> None:
    plain, captured = train(name, "cuda", 3, captured=False), train(name, "cuda", 3, captured=True)
    for a, b in zip(plain, captured, strict=True):
        for key in a:
            torch.testing.assert_close(b[key], a[key], rtol=1e-4, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


def test_graphs_are_captured_and_stay_on() -> None:
    with graphs(True):
        run = make_run("fast", "cuda", SMALL)
    for _ in range(3):
        run.learn(run.collect())
    assert run.learner.steps.graphs.enabled
    assert run.collector._graphs.enabled
    assert run.envs[0]._graphs.enabled
    assert run.learner.steps.apply.graph is not None
    run.close()


@pytest.mark.parametrize("name", ["fast", "duel"])
def test_a_run_resumes_exactly_with_graphs(name: str) -> None:
    settings = [*SMALL, *TASKS[name][2]]
    run = make_run(name, "cuda", settings)
    for _ in range(2):
        run.learn(run.collect())
    state = state_of(run)
    first = {k: v.cpu().clone() for k, v in run.collect().items(include_nested=True, leaves_only=True)}
    run.close()
    again = make_run(name, "cuda", settings)
    again.load_state_dict(state)
    second = {k: v.cpu() for k, v in again.collect().items(include_nested=True, leaves_only=True)}
    assert not [key for key in first if not torch.equal(first[key], second[key])]
    again.close()


def test_an_env_steps_on_torchs_current_stream() -> None:
    seen = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        run = make_run("fast", "cuda", SMALL)
        env = run.envs[0]
        with torch.cuda.stream(stream):
            env.reset()
            action = torch.full((env.num_envs, 3), 0.7, device="cuda")
            for _ in range(10):
                torch.cuda._sleep(1_000_000)  # a launch on another stream would run before this has ended
                action = (action + 0.01).clamp(max=1.0)
                out = env.step(action)
        stream.synchronize()
        seen.append(out["obs"]["state"].cpu())
        run.close()
    assert torch.equal(*seen)


def test_a_checkpoint_has_the_weights_of_the_moment_of_its_save(tmp_path: Path) -> None:
    weights = torch.zeros(64_000_000, device="cuda")
    with AsyncCheckpointSaver() as saver:
        for number in range(5):
            weights.fill_(float(number))
            handle = saver.save_async({"weights": weights}, tmp_path / f"{number}.fledge")
            saver.fence()
            weights.fill_(-1.0)  # the copy must have ended, or have kept this write back
            handle.wait()
    for number in range(5):
        assert (load_checkpoint(tmp_path / f"{number}.fledge")["weights"] == float(number)).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_with_equal_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fledge", "train", "navigation", "--preset", "fast", "device=cuda", "ranks=2"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "run"), "env.num_envs=512", "total_frames=200000"],
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    rows = [json.loads(line) for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()]
    assert rows
    assert all(abs(row["total_loss"]) < 1e3 for row in rows)
