"""Deployment folders for tests: small ones that are quick to write, and ways to damage a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import fledge
from fledge.deployment import recording
from fledge.tasks.navigation.networks.feature_policy import FeaturePolicy
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge_runtime.contract import CONTRACT, GOLDEN, file_hash, identity_of

SMALL = {"num_maps": 2, "moving_obstacles": 40, "starts": "mixed", "inside_share": 1.0, "walls": False}
PLANNER = "planner(guard=true,identify=true,depth_cost=200,hasten=true)"
QUICK = {"ROWS": 66, "WARM_UP": 4, "LENGTHS": (4, 6)}  # of the recording of golden sequences


def deploy_small(policy: Any, folder: Path, **settings: Any) -> Path:
    """Write a deployment folder of a policy, in an env that is quick to build."""
    with mock.patch.multiple(recording, **QUICK):
        return fledge.deploy(policy, folder, progress=False, **SMALL | settings).path


def with_memory() -> LoadedPolicy:
    """Return fledge-reflex with a small untrained network that remembers."""
    torch.manual_seed(0)
    network = FeaturePolicy(hidden=(16,), gru_size=8).eval()
    with torch.no_grad():
        network.head.layer.weight *= 100.0  # so that the memory shows in the command
    reflex = load_policy("fledge-reflex")
    return LoadedPolicy("remembers", network, reflex.task, reflex.env)


def copy_of(folder: Path, place: Path) -> Path:
    """Return a copy of a folder, without the runtime's source."""
    target = Path(shutil.copytree(folder, place / "copy", ignore=shutil.ignore_patterns("fledge_runtime")))
    reseal(target)
    return target


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change a contract, and make hashes and golden file agree with it, as a faulty tool would."""
    contract = json.loads((folder / CONTRACT).read_text())
    edit(contract)
    (folder / CONTRACT).write_text(json.dumps(contract))
    reseal(folder)


def reseal(folder: Path) -> None:
    """Make identity, hashes and the identity in the golden file agree."""
    contract = json.loads((folder / CONTRACT).read_text())
    contract["identity"] = identity_of(contract)
    with np.load(folder / GOLDEN) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta")))
    np.savez(folder / GOLDEN, meta=np.array(json.dumps({**meta, "identity": contract["identity"]})), **arrays)
    rehash(folder, contract)


def rehash(folder: Path, contract: dict[str, Any]) -> None:
    """Write the contract with the hashes of the files that are there."""
    names = [path.name for path in folder.iterdir() if path.is_file() and path.name != CONTRACT]
    contract["files"] = {name: file_hash(folder / name) for name in names}
    (folder / CONTRACT).write_text(json.dumps(contract))
