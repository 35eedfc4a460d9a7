"""Write a deployment folder: policy.onnx (if there is a network), contract.json, golden.npz, README.md, the runtime's source.

The folder is written beside its place and moved there when it has passed the runtime's own check.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fledge.agents.export import contract_of, export_agent
from fledge.core.errors import ConfigError, FledgeError
from fledge.core.paths import check_output, shorten
from fledge.deployment.contract import evaluated_rows, hash_files, make_contract
from fledge.deployment.goldens import save_goldens, write_goldens
from fledge.deployment.readme import write_readme
from fledge.deployment.runtime import find_runtime, runtime_files
from fledge.evaluation.env_config import eval_env, without_opponent
from fledge.evaluation.results import Evaluation
from fledge.tasks.policy_loader import LoadedPolicy


@dataclasses.dataclass
class Deployed:
    """Result of `fledge.deploy`.

    Attributes:
        path: The folder.
        bytes: Size of all its files.
        contract: Its contract.json.
        figures: All results, JSON-able, as `fledge deploy --json` prints them.
    """

    path: Path
    bytes: int
    contract: dict[str, Any] = dataclasses.field(repr=False)
    figures: dict[str, Any] = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all results, JSON-able, as `fledge deploy --json` prints them."""
        return self.figures


def deploy_policy(
    policy: LoadedPolicy, folder: Path, overrides: Sequence[str] = (), evaluation: Evaluation | None = None
) -> Deployed:
    """Write a deployment folder; replace an older one.

    Args:
        overrides: `env.key=value` changes a setting of the env config that the contract describes.
        evaluation: Results of the policy, for the contract.
    """
    check_folder(folder)
    if policy.task.match.sides == 2:
        policy = without_opponent(policy)
    cfg = eval_env(policy, overrides=overrides).cfg
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        facts = fill(place, policy, cfg, evaluation)
        check_folder(folder)  # again: a file may have been put there meanwhile
        replace(folder, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    contract = facts.pop("contract")
    figures = {"folder": str(folder), "bytes": facts["bytes"], **facts, "contract": contract}
    return Deployed(folder, facts["bytes"], contract, figures)


def fill(place: Path, policy: LoadedPolicy, cfg: Any, evaluation: Evaluation | None) -> dict[str, Any]:
    """Write all files to an empty folder, check it as a robot does, and return facts about it."""
    from fledge_runtime.contract import CONTRACT, GOLDEN, POLICY, identity_of
    from fledge_runtime.errors import RuntimeFault
    from fledge_runtime.verify import verify

    planned = policy.task.policy.robot.planner_config(cfg, policy.agent)
    if planned is None:
        exported = export_agent(policy.agent, place / POLICY, policy.task.contract(cfg))
    else:
        cfg, exported = (
            planned,
            {"contract": contract_of(policy.agent, policy.task.contract(planned)), "max_difference": 0.0},
        )
    made = make_contract(policy, cfg, exported["contract"], network=planned is None)
    contract = json.loads(json.dumps(made, allow_nan=False))
    check_planner(contract)
    goldens = write_goldens(policy, cfg, contract, place / GOLDEN)
    if "slew_m_s2" in goldens:
        contract["limits"]["slew_m_s2"] = round(goldens["slew_m_s2"], 1)
    contract["evaluated"] = evaluated_rows(evaluation) if evaluation is not None else None
    contract["identity"] = identity_of(contract)
    save_goldens(goldens, contract)
    write_readme(place / "README.md", contract)
    copy_runtime(place)
    names = [path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()]
    contract["files"] = hash_files(place, names)
    (place / CONTRACT).write_text(json.dumps(contract, indent=1) + "\n", encoding="utf-8")
    try:
        checked = verify(place)
    except RuntimeFault as error:
        raise FledgeError(f"The folder does not pass the runtime's check, so it was removed. {error}") from error
    return {
        "contract": contract,
        "bytes": sum(path.stat().st_size for path in place.rglob("*") if path.is_file()),
        "max_difference": exported["max_difference"],
        **{key: checked[key] for key in ("sequences", "decisions", "largest_difference", "ms", "planner")},
        "from_simulator": goldens.get("largest_difference", {}),
    }


def check_planner(contract: dict[str, Any]) -> None:
    """Raise ConfigError if decisions are further apart than the planner predicts."""
    settings = (contract["planner"] or {}).get("settings", {})
    horizon = settings.get("planner.horizon_s")
    if horizon is not None and contract["decision_s"] > horizon:
        raise ConfigError(
            f"env.dt_s times env.decimation gives a decision every {contract['decision_s']:g} s, but the planner predicts "
            f"{horizon:g} s: lower env.decimation, or raise horizon_s."
        )


def copy_runtime(place: Path) -> None:
    """Copy the runtime's source, so that `python -m fledge_runtime` works in the folder."""
    package = find_runtime()
    for path in runtime_files(package):
        target = place / package.name / path.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless the folder is new, empty, or one that `fledge deploy` wrote, or if the runtime is missing."""
    find_runtime()
    check_output(folder / "contract.json")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{shorten(folder)} is a file: choose another name for the folder.")
    other = next(other_files(folder), None) if folder.is_dir() else None
    if other is not None:
        raise ConfigError(
            f"{shorten(folder)} has other files in it, such as {other}: move them away, or choose a new folder."
        )


def other_files(folder: Path) -> Iterator[str]:
    """Yield the files of a folder that neither `fledge deploy` nor the runtime wrote there."""
    from fledge_runtime import native
    from fledge_runtime.contract import CONTRACT, FORMAT

    known = set()
    try:
        contract = json.loads((folder / CONTRACT).read_text(encoding="utf-8"))
        if contract["format"] == FORMAT:
            library = f"fledge_runtime/native/{native.LIBRARY}"
            known = {CONTRACT, *contract["files"], library, f"{library}.sha256"}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (
            (path.is_symlink() or not path.is_dir())
            and name not in known
            and not (known and path.parent.name == "__pycache__")
        ):
            yield name


def replace(folder: Path, new: Path) -> None:
    """Move a folder to its place; an older one there is removed, or put back if that fails."""
    new.chmod(0o755)
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    if folder.exists():
        os.replace(folder, old / "old")
    try:
        os.replace(new, folder)
    except OSError:
        if (old / "old").exists():
            os.replace(old / "old", folder)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)
