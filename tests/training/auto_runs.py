"""Runs with sizes that change at known iterations, stopped at a chosen point; see test_auto.py.

Run: python -m tests.training.auto_runs FOLDER POINT [key=value ...], for each rank with the variables of torchrun. It starts
or resumes the run, and kills itself with SIGKILL at POINT, such as written:3 (the decision of iteration 3 is recorded),
resized:3 (it is carried out), saved:4 (the checkpoint of iteration 4 is durable); "" lets it end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fledge.core.errors import FledgeError
from fledge.training import auto, loop
from fledge.training.command import run_training
from fledge.training.outputs import RunOutputs
from fledge.training.run import TrainingState
from fledge.training.trials import Sizes, Trial

TINY = ["env.num_envs=8", "env.num_maps=1", "env.static_obstacles=20", "env.moving_obstacles=4", "ppo.rollout_steps=8"]
TINY += ["ppo.minibatch=16", "ppo.epochs=1", "env.max_episode_steps=12", "policy.hidden=[8]", "total_frames=768"]
TINY += ["save_interval=2", "tensorboard=false", "threads=1", "auto=[env.num_envs,ppo.minibatch]"]
PLAN: dict[int, tuple[str, Sizes]] = {  # iteration -> why, chosen sizes
    0: ("start", {"env.num_envs": 16, "ppo.minibatch": 16}),
    3: ("load", {"env.num_envs": 4, "ppo.minibatch": 16}),
    5: ("noise", {"env.num_envs": 4, "ppo.minibatch": 32}),
    8: ("load", {"env.num_envs": 8, "ppo.minibatch": 32}),
}


def follow_plan(folder: Path, set_attribute: Callable[[Any, str, Any], Any] = setattr) -> None:
    """Replace what measures by `PLAN`; decisions that are in the folder's record would come out differently now."""
    known = {record["iteration"] for record in auto.read_records(folder / auto.FILE)}

    def reason(self: auto.AutoSizes) -> str:
        return PLAN[self.run.iteration][0] if self.run.iteration in PLAN else ""

    def choose(trials: list[Trial], old: Sizes, configured: int, why: str) -> Sizes:
        iteration = int(trials[0].turns[0])
        return {"env.num_envs": 32, "ppo.minibatch": 8} if iteration in known else PLAN[iteration][1]

    def trials(run: TrainingState, candidates: Sequence[Sizes], turns: int = 0) -> list[Trial]:
        return [Trial(candidates[0], [float(run.iteration)])]

    set_attribute(auto.AutoSizes, "_reason", reason)
    set_attribute(auto, "candidates", lambda run, why: [{"env.num_envs": 8, "ppo.minibatch": 16}] * 2)
    set_attribute(auto, "choose", choose)
    set_attribute(auto, "run_trials", trials)


def stop_at(point: str, stop: Callable[[], None], set_attribute: Callable[[Any, str, Any], Any] = setattr) -> None:
    """Call `stop` at a point of the run (see the top of this file)."""
    if not point:
        return
    where, _, number = point.partition(":")
    write, resize, save = auto.write_records, TrainingState.resize, RunOutputs.save

    def stopping_write(path: Path, records: list[dict[str, Any]]) -> None:
        write(path, records)
        if where == "written" and records[-1]["iteration"] == int(number):
            stop()

    def stopping_resize(self: TrainingState, sizes: Sizes) -> None:
        resize(self, sizes)
        if where == "resized" and self.iteration == int(number) and self.ranks.is_first:
            stop()

    def stopping_save(self: RunOutputs, state: dict[str, Any]) -> None:
        save(self, state)
        if where == "saved" and self.run.iteration == int(number):
            assert self.newest is not None
            self.newest.wait()
            stop()

    set_attribute(auto, "write_records", stopping_write)
    set_attribute(TrainingState, "resize", stopping_resize)
    set_attribute(RunOutputs, "save", stopping_save)


if __name__ == "__main__":
    place, point, *words = sys.argv[1:]
    folder = Path(place)
    follow_plan(folder)
    stop_at(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
    resume = (folder / "config.yaml").exists()
    assert loop.AutoSizes is auto.AutoSizes
    try:
        run_training(None, None if resume else "", [] if resume else [*TINY, *words], folder, resume, quiet=True)
    except FledgeError as error:
        sys.exit(str(error))
