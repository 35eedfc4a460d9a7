"""NaN while learning: write the update that produced it to a file (a dump), and repeat it from there.

The dump is an ordinary checkpoint. It holds the policy's description, the run's settings, the learner (weights,
optimisers, random state) before the update, and the data of the update: PPO's rollout, or the batches from replay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fledge.core.errors import FormatError, NumericsError
from fledge.core.machine import pick_device
from fledge.core.overrides import build_config, to_plain
from fledge.storage import load_checkpoint, save_checkpoint
from fledge.tasks.base import Task
from fledge.tasks.registry import find_named_task
from fledge.training.config import aliases_of, chosen_algo, config_class
from fledge.training.factories import make_learner
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState


def dump_update(run: TrainingState, folder: Path, error: NumericsError) -> NumericsError:
    """Write the update that failed to a file, and return the error with the name of that file."""
    if error.dump is not None or error.cause is None:  # the env's NaN guard has written its own
        return error
    path = folder / f"nan_dump_iteration{run.iteration}_rank{run.ranks.rank}.fledge"
    state = {**error.cause, "policy": run.description, "iteration": run.iteration, "config": to_plain(run.cfg)}
    state["device"] = run.device
    save_checkpoint(state, path)
    text = f"{error} The update is in {path}: fledge.training.nan_dump.replay_update(path) repeats it."
    return NumericsError(text, dump=str(path))


def replay_update(
    path: str | Path, task: Task | None = None, algo: str = "", device: str | None = None
) -> dict[str, float]:
    """Repeat a dumped update on one rank and return its losses; raise NumericsError if it fails again.

    Args:
        task: The run's task. Required if the task is your own code: code that only a file names is not run.
        algo: The run's algorithm. Required if the algorithm is your own code.
        device: "cpu", "cuda" or "cuda:N"; by default the kind of device that the run used, which draws the same random
            numbers.
    """
    state: dict[str, Any] = load_checkpoint(path)
    if not isinstance(state, dict) or not {"learner", "policy", "config", "progress"} <= set(state):
        raise FormatError(
            f"{path} is not a dump of an update, which has the entries learner, policy, config and progress: pass a file "
            "nan_dump_iteration*.fledge."
        )
    task = task or find_named_task(str(state["config"]["task"]), asked_by=str(path))
    kind = config_class(task, chosen_algo([("", state["config"])], (), task, named=[f"algo={algo}"]))
    cfg = build_config(kind, [(str(path), state["config"])], (), aliases_of(task))
    used = str(state.get("device", cfg.device)).partition(":")[0]  # the run's GPU may be another one here
    place = pick_device(device or used, torch.cuda.device_count())
    learner = make_learner(cfg, task.policy.build(state["policy"]).to(place), Ranks())
    try:
        return learner.repeat(state)
    finally:
        learner.close()
