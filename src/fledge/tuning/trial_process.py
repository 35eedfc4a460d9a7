"""The process of one trial: train the run, evaluate its policy, and write the result beside the run's folder.

    python -m fledge.tuning.trial_process PARENT ORDER

PARENT is the id of the worker's process, with which this one stops (after saving); ORDER is JSON with the fields of `Order`.
An error becomes a result too, `{"error": sentence}`. A stopped process writes no result: its run can be continued.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fledge.core.errors import FledgeError
from fledge.core.parent_process import when_parent_ends
from fledge.core.settings import flat_settings
from fledge.core.terminal import strict_json
from fledge.storage.disk.durable import write_text

STOPPED = 3  # exit code


@dataclass
class Order:
    """The work of one process."""

    task: str
    preset: str | None
    overrides: list[str]
    shared: list[str]
    """Settings of all trials: every policy is evaluated in the env of these, so that swept env settings change no figure."""
    folder: str
    result: str
    episodes: int
    eval_seeds: dict[str, int]
    facts: dict[str, Any]
    """Parameters, for the result."""
    force: bool = False
    cores: list[int] | None = None


def train_and_evaluate(order: Order) -> dict[str, Any] | None:
    """Return the result of a trial; None if it was stopped."""
    from fledge.evaluation.env_config import in_shared_env
    from fledge.evaluation.episodes import evaluate
    from fledge.monitor.metrics_file import read_metrics
    from fledge.tasks.policy_factory import TrainedEnv
    from fledge.tasks.policy_loader import load_policy
    from fledge.tasks.registry import find_task
    from fledge.training.command import run_training
    from fledge.training.config import make_config

    task, folder = find_task(order.task), Path(order.folder)
    done = run_training(task, order.preset, order.overrides, folder, "auto", force=order.force)
    if done.interrupted:
        return None
    rows = read_metrics(folder / "metrics.jsonl")
    found = {"minutes": rows[-1]["seconds"] / 60, "frames": rows[-1]["frames"]} if rows else {}
    trained = make_config(task, order.preset, order.overrides).env
    shared = TrainedEnv(flat_settings(make_config(task, order.preset, order.shared).env))
    agent = load_policy(str(folder), task).agent
    world = task.policy.enable_observations(task.evaluation(in_shared_env(task, trained, shared)), agent)
    for name, seed in order.eval_seeds.items():
        flown = evaluate(agent, task, world, order.episodes, seed)
        found[name] = flown.score
        if not math.isfinite(flown.score):
            raise FledgeError(f"The {task.primary_metric} of the trained policy is {flown.score}.")
        if name == "value":
            found["low"], found["high"] = flown.score_ci95
    return found


def main() -> None:
    order = Order(**json.loads(sys.argv[2]))
    when_parent_ends(int(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGTERM))
    if order.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, order.cores)
    try:
        result = train_and_evaluate(order)
    except KeyboardInterrupt:
        result = None
    except Exception as error:
        result = {"error": str(error) if isinstance(error, FledgeError) else f"{type(error).__name__}: {error}."}
        print(f"trial failed: {result['error']}", file=sys.stderr)
    if result is None:
        sys.exit(STOPPED)
    write_text(order.result, strict_json({**result, "facts": order.facts}) + "\n")


if __name__ == "__main__":
    main()
