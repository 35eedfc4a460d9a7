"""Memory: what cannot fit is refused with the setting to lower, and nothing grows over iterations."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fledge.core.errors import MemoryBudgetError
from fledge.envs import warp_env
from fledge.envs.placement import EnvPlacement
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.registry import find_task
from fledge.training import memory
from fledge.training.command import check_before_start
from fledge.training.config import TrainConfig, make_config
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

TASK = find_task("aircombat")


def suggested(error: pytest.ExceptionInfo[MemoryBudgetError]) -> int:
    found = re.search(r"lower env\.num_envs to at most ([\d,]+)", str(error.value))
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(("opponent", "unit"), [("random", "duels"), ("", "rows")])
def test_more_duels_than_fit_are_refused_and_the_suggested_number_fits(
    monkeypatch: pytest.MonkeyPatch, opponent: str, unit: str
) -> None:
    monkeypatch.setattr(warp_env, "available_bytes", lambda device: 1_000_000)

    def make(num_envs: int) -> None:
        cfg = AircombatConfig(num_envs=num_envs, opponent=opponent, spacetime=False)
        TASK.make_env(cfg, EnvPlacement(num_threads=1)).close()

    with pytest.raises(
        MemoryBudgetError, match=rf"^4,096 {unit} need .* GiB are available: lower env\.num_envs"
    ) as error:
        make(4096)
    fits = suggested(error)
    make(fits)
    with pytest.raises(MemoryBudgetError):
        make(fits + 2)


def training(*words: str) -> TrainConfig:
    small = [
        "opponent=random",
        "env.spacetime=false",
        "policy.hidden=[16]",
        "ranks=1",
        "device=cpu",
        "tensorboard=false",
    ]
    return make_config(TASK, None, [*small, *words])


def test_rollouts_that_cannot_fit_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10_000_000)
    with pytest.raises(MemoryBudgetError, match=r"Rollouts of 32 decisions of 4,096 duels need") as error:
        check_before_start(TASK, training("num_envs=4096"), 1)
    assert "ppo.rollout_steps, or take hardware=small" in str(error.value)
    check_before_start(TASK, training(f"num_envs={suggested(error)}"), 1)
    check_before_start(TASK, training("num_envs=4096", "n_steps=1"), 1)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_running_out_of_memory_names_the_settings_to_lower(error: RuntimeError) -> None:
    with (
        pytest.raises(
            MemoryBudgetError, match=r"lower ppo\.minibatch, or lower env\.num_envs to at most 512, or ppo\.rollo"
        ),
        memory.memory_sentence(TASK, training("num_envs=1024")),
    ):
        raise error
    with pytest.raises(RuntimeError, match="something else"), memory.memory_sentence(TASK, training()):
        raise RuntimeError("something else")


def alive() -> tuple[int, int]:
    """Tensors that exist, and their bytes."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return len(found), sum(t.numel() * t.element_size() for t in found)


def assert_nothing_grows(work: Callable[[], object]) -> None:
    for _ in range(3):  # what is made once is made by now
        work()
    before = alive()
    for _ in range(6):
        work()
    after = alive()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] * 1.01


def test_steps_and_resets_leave_nothing_behind() -> None:
    env = TASK.make_env(
        AircombatConfig(num_envs=64, opponent="random", spacetime=False, max_episode_s=5.0), EnvPlacement(num_threads=1)
    )
    env.reset()
    action = {"rudder": torch.zeros(64), "throttle": torch.ones(64), "fire": torch.zeros(64, dtype=torch.int64)}
    some = torch.arange(64) % 3 == 0

    def work() -> None:
        for _ in range(7):
            env.step(action)
            env.step(action, out=env.make_buffers())
        env.reset(some)
        env.state_dict()

    assert_nothing_grows(work)
    env.close()


def test_iterations_of_training_leave_nothing_behind(tmp_path: Path) -> None:
    cfg = training("num_envs=64", "ppo.rollout_steps=8", "ppo.minibatch=128", "total_frames=1000000")
    run = TrainingState(cfg, Ranks(), TASK)
    assert_nothing_grows(lambda: run.learn(run.collect()))
    run.close()
