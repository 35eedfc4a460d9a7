"""Python functions for the commands `fledge benchmark`, `fledge export` and `fledge report`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.core.overrides import leaves, settings_to_overrides
from fledge.core.paths import check_output
from fledge.evaluation.benchmark import BenchmarkResult, run_benchmark
from fledge.evaluation.comparison import EvalRequest, loaded_policy
from fledge.evaluation.episodes import TEST_SEED
from fledge.evaluation.export import ExportResult, export_policy
from fledge.evaluation.report import REPORT_EPISODES, report_on_run
from fledge.tasks.base import Task
from fledge.tasks.envs import env_overrides
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task


def benchmark(
    name: str,
    policies: Any = (),
    episodes: int = 1024,
    seed: int = TEST_SEED,
    *,
    task: str | Task | type[Task] = "navigation",
    only: bool = False,
    columns: Sequence[str] | str = (),
    picture: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    device: str = "cpu",
    interop: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> BenchmarkResult:
    """Evaluate policies by a published protocol, and compare them with reference agents and published results.

    Example:
        >>> result = fledge.benchmark("crossing", "runs/mine", episodes=256)
        >>> result.table()

    Args:
        name: Name of the protocol: crossing, faults, transfer, swarm, navrl, p2m, sando, fapp or density (navigation).
        policies: Your policies, as `fledge.evaluate` takes them.
        episodes: Episodes per policy and env config.
        seed: Seed of the held-out episodes.
        task: Task that defines the protocol.
        only: Leave out the reference agents.
        columns: Headings of the env configs to fly in. By default all.
        picture: Also write the figure to this file.
        threads: CPU threads of the envs. By default all cores.
        device: Where envs and policies run: "cpu", "cuda", "cuda:N", or "auto" (a GPU if there is one).
        interop: Another project's policy file to evaluate as well, for example NavRL's checkpoint.
        progress: False prints nothing.
        settings: Settings of the env, as `fledge.make_env` takes them.
    """
    found = find_task(task)
    request = EvalRequest(
        policies,
        env_overrides(found, settings),
        episodes=episodes,
        seed=seed,
        picture=picture,
        threads=threads,
        device=device,
        foreign=interop,
        quiet=progress is False,
    )
    return run_benchmark(found, name, request, only, [columns] if isinstance(columns, str) else columns)


def export(
    policy: Any,
    path: str | os.PathLike[str],
    *,
    task: str | Task | type[Task] | None = None,
    golden: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ExportResult:
    """Write a policy to a file for other programs, and check that the file matches the policy.

    Example:
        >>> exported = fledge.export("fledge-nav", "nav.onnx")
        >>> exported.path, exported.max_difference

    Args:
        policy: A name, a path, a run or a loaded policy.
        path: File to write: .onnx, .ts (TorchScript), or .fledge (weights alone).
        task: The policy's task. Needed only if the task is a class of your own.
        golden: Also write observations of a flight and the policy's actions on them to this .npz file, so that
            other programs can be tested with them.
        settings: Env settings to change in the env config that the file describes, as `fledge.make_env` takes them.

    Returns:
        The file's path, its size, and the largest difference from the policy.
    """
    found = loaded_policy(policy) or load_policy(policy, task)
    switches = {key: value for key, value in leaves(settings) if key.startswith("policy.")}
    others = {key: value for key, value in leaves(settings) if key not in switches}
    overrides = [*settings_to_overrides(switches), *env_overrides(found.task, others)]
    done = export_policy(found, Path(path), found.task, overrides, None if golden is None else Path(golden))
    return ExportResult(Path(done["file"]), done["bytes"], done["max_difference"], done.get("contract", {}), done)


def report(
    run: Any,
    path: str | os.PathLike[str] | None = None,
    episodes: int = REPORT_EPISODES,
    seed: int = TEST_SEED,
    *,
    task: str | Task | type[Task] | None = None,
    vary: tuple[str, Sequence[Any]] | None = None,
    device: str = "cpu",
    progress: bool | None = None,
    **settings: Any,
) -> Path:
    """Write an HTML page about a run and return its path: curves, results beside scripted policies, pictures.

    Example:
        >>> fledge.report("runs/mine", "report.html", episodes=64)

    Args:
        run: A run, or its folder.
        path: Page to write (.html). By default report.html in the run's folder.
        episodes: Episodes per policy and env config.
        seed: Seed of the held-out episodes.
        task: The run's task. Needed only if the task is a class of your own.
        vary: A setting and the values to evaluate one after the other: ("env.moving_obstacles", [0, 40, 80]).
        device: Where envs and policies run: "cpu", "cuda", "cuda:N", or "auto" (a GPU if there is one).
        progress: False prints nothing.
        settings: Settings of the env, as `fledge.make_env` takes them.
    """
    chosen = task if task is not None else getattr(run, "task", None)
    options: dict[str, Any] = {"episodes": episodes, "seed": seed, "vary": vary, "device": device}
    options["quiet"] = progress is False
    return Path(write_run_report(Path(getattr(run, "folder", run)), path, chosen, settings, **options)["report"])


def write_run_report(
    folder: Path, path: str | os.PathLike[str] | None, task: Any, settings: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """Write the page as `report` does. Return its path and the results on it, as JSON-able values.

    `options` are fields of `EvalRequest`.
    """
    page = check_output(folder / "report.html" if path is None else path, (".html",))
    found = load_policy(folder, task).task
    return report_on_run(folder, EvalRequest([], env_overrides(found, settings), task=found, **options), page)
