"""training.memory: what is counted before a run starts is what the run allocates."""

from __future__ import annotations

from typing import Any

import pytest

from fledge.core.errors import MemoryBudgetError
from fledge.tasks.registry import find_task
from fledge.training import memory
from fledge.training.config import make_config
from fledge.training.memory import check_memory, decision_bytes
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

PPO = ["env.num_envs=8", "ppo.rollout_steps=4", "ppo.minibatch=32", "total_frames=100", "device=cpu"]
RUNS: dict[str, tuple[str, str, list[str]]] = {
    "fast": ("navigation", "fast", []),
    "navrl": ("navigation", "navrl", []),
    "planned": ("navigation", "planned", []),
    "typical": ("navigation", "fast", ["perception=typical"]),
    "lidar": ("navigation", "fast", ["sensor=mid360", "env.movers_from=lidar"]),
    "recurrent": ("navigation", "fast", ["policy.gru_size=16"]),
    "pipelined": ("navigation", "fast", ["collect.mode=pipelined"]),
    "halves": ("navigation", "fast", ["collect.mode=halves"]),
    "duel": ("aircombat", "fast", []),
    "duel_discrete": ("aircombat", "fast", ["env.action_form=discrete"]),
}


def make(name: str) -> TrainingState:
    task_name, preset, settings = RUNS[name]
    task = find_task(task_name)
    return TrainingState(make_config(task, preset, [*settings, *PPO]), Ranks(), task)


@pytest.mark.parametrize("name", RUNS)
def test_every_byte_of_a_rollout_is_counted(name: str) -> None:
    run = make(name)
    collector: Any = getattr(run.collector, "base_collector", run.collector)
    for rollout, _ in collector._rollouts:
        held = sum(tensor.nbytes for tensor in rollout.values(include_nested=True, leaves_only=True))
        assert held == decision_bytes(run.task, run.cfg) * rollout.numel()
    run.close()


def test_a_rollout_that_does_not_fit_is_refused_with_a_number_of_envs_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make("fast")
    need = 32 * decision_bytes(run.task, run.cfg)
    monkeypatch.setattr(memory, "available_bytes", lambda device: int(0.9 * need))
    with pytest.raises(MemoryBudgetError, match=r"lower env\.num_envs to at most [1-7]\b"):
        check_memory(run.task, run.cfg, 1)
    run.close()
