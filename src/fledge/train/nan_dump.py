"""NaN while learning: a dump of the update that produced it, and its repetition.

The dump is an ordinary checkpoint: the policy's description, the run's settings, the learner (weights, optimisers,
random state) before the update, and what it learned from: PPO's rollout, or the batches drawn from replay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tensordict import TensorDict

from fledge.agents.build import build_from_description
from fledge.core.errors import FormatError, NumericsError
from fledge.learn.ppo import PPO
from fledge.storage import load_checkpoint, save_checkpoint
from fledge.train.algorithms import make_learner
from fledge.train.config import TrainConfig
from fledge.train.ranks import Ranks
from fledge.train.run import Run

NEEDED = ("input", "raw", "log_prob", "value", "next_value", "reward", "terminated", "truncated")


def dump_update(run: Run, folder: Path, error: NumericsError) -> NumericsError:
    """Write the update that failed, and return the error with the file's name."""
    if error.dump is not None or error.cause is None:  # the env's NaN guard has written its own
        return error
    path = folder / f"nan_dump_iteration{run.iteration}_rank{run.ranks.rank}.fledge"
    state = dict(error.cause)
    if "rollout" in state:
        state["rollout"] = {name: state["rollout"][name] for name in NEEDED}
    state |= {"policy": run.description, "iteration": run.iteration}
    state["config"] = OmegaConf.to_container(OmegaConf.structured(run.cfg), enum_to_str=True)
    save_checkpoint(state, path)
    text = f"{error} The update is in {path}: fledge.train.nan_dump.replay_update(path) repeats it."
    return NumericsError(text, dump=str(path))


def replay_update(path: str | Path) -> dict[str, float]:
    """Repeat a dumped update on one rank; raises NumericsError again if it fails again, else returns its losses."""
    state: dict[str, Any] = load_checkpoint(path)
    if not isinstance(state, dict) or not {"learner", "policy", "config", "progress"} <= set(state):
        raise FormatError(f"{path} is not a dump of an update: it lacks learner, policy, config or progress.")
    cfg = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.create(state["config"])))
    assert isinstance(cfg, TrainConfig)
    learner = make_learner(cfg, build_from_description(state["policy"]), Ranks())
    learner.load_state_dict(state["learner"])
    if isinstance(learner, PPO):
        rollout = TensorDict(state["rollout"], state["rollout"]["reward"].shape)
        return learner.update(rollout, float(state["progress"]))
    try:
        learner.schedule(float(state["progress"]))
        return learner.learn(state["batches"])
    finally:
        learner.close()
