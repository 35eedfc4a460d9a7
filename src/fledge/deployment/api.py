"""`fledge.deploy`: the Python function of the command `fledge deploy`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError
from fledge.deployment.folder import Deployed, check_folder, deploy_policy
from fledge.evaluation.comparison import loaded_policy
from fledge.evaluation.episodes import TEST_SEED
from fledge.evaluation.evaluate import evaluate as run_evaluation
from fledge.tasks.base import Task
from fledge.tasks.envs import env_overrides
from fledge.tasks.policy_loader import load_policy


def deploy(
    policy: Any,
    folder: str | os.PathLike[str],
    *,
    task: str | Task | type[Task] | None = None,
    evaluate: int = 0,
    seed: int = TEST_SEED,
    progress: bool | None = None,
    **settings: Any,
) -> Deployed:
    """Write a folder that flies a policy on a robot, with NumPy and onnxruntime and without Fledge.

    The folder has the network (policy.onnx), its contract (contract.json), golden sequences (golden.npz), a README.md and
    the runtime's source. Copy it to the robot and run `python -m fledge_runtime verify .` in it.

    Example:
        >>> deployed = fledge.deploy("fledge-nav", "nav")
        >>> deployed.contract["limits"]

    Args:
        policy: A name, a path, a run or a loaded policy.
        folder: Folder to write: new, empty, or an earlier deployment, which is replaced.
        task: The policy's task. Needed only if the task is a class of your own.
        evaluate: Also evaluate the policy on this many held-out episodes and write the results to the contract; 0: the
            contract says that it was not evaluated.
        seed: Seed of these episodes.
        progress: False prints nothing.
        settings: Env settings to change in the env config that the contract describes, as `fledge.make_env` takes them.
    """
    check_folder(Path(folder))
    found = loaded_policy(policy) or load_policy(policy, task)
    results = None
    if evaluate:
        if found.task.match.sides == 2:
            raise ConfigError(
                f"evaluate={evaluate} does not work with the two-player task {found.task.name}: leave it out."
            )
        results = run_evaluation(found, episodes=evaluate, seed=seed, progress=progress, **settings)
    return deploy_policy(found, Path(folder), env_overrides(found.task, settings), results)
