"""Read a deployment folder's contract.json and check the folder against it.

format, format_version      what the file is; a newer version is refused
identity                    SHA-256 of the contract itself, without `identity` and `files`; golden.npz repeats it
files                       SHA-256 of every other file
decision_s, timing, limits  decision rate, largest ages of inputs, delays of training, speeds and heights
raw_inputs, frames          readings that a pilot takes; null: the folder's network is flown by observations alone
sensor, planner             geometry of the rays, settings of the planner (null: none)
observation, action         inputs and outputs of the network, named in `inputs` (empty: no network, the planner flies)
                            and `outputs`; `memory` of a recurrent one
reset                       what begins anew with every flight
evaluated                   worlds, speeds and success with intervals; null: not evaluated
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from fledge_runtime.errors import ContractError

FORMAT, VERSION = "fledge deployment", 1
CONTRACT, POLICY, GOLDEN = "contract.json", "policy.onnx", "golden.npz"
NEEDED = ("identity", "files", "decision_s", "inputs", "outputs", "observation", "action", "raw_inputs", "planner")
AGAIN = "run `fledge deploy` again"


def read_contract(folder: Path) -> dict[str, Any]:
    """Return a folder's contract, without checking the other files.

    Raises:
        ContractError: if it cannot be read, is of a newer format, or was changed after it was written.
    """
    path = folder / CONTRACT
    try:
        contract = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ContractError(f"{path} cannot be read: give a folder that `fledge deploy` wrote.") from None
    except ValueError:
        raise ContractError(f"{path} is cut off or not JSON: copy the folder again.") from None
    if not isinstance(contract, dict) or contract.get("format") != FORMAT:
        raise ContractError(f"{path} is not a contract: give a folder that `fledge deploy` wrote.")
    version = contract.get("format_version")
    if version != VERSION:
        raise ContractError(
            f"{path} has format version {version}, but this fledge_runtime reads version {VERSION}: use the runtime in the "
            f"folder, or {AGAIN}."
        )
    missing = [key for key in NEEDED if key not in contract]
    if missing:
        raise ContractError(f"{path} lacks {', '.join(missing)}: {AGAIN}.")
    if contract["identity"] != identity_of(contract):
        raise ContractError(f"{path} was changed after it was written: copy the folder again, or {AGAIN}.")
    rate = contract["decision_s"]
    if not isinstance(rate, (int, float)) or not (math.isfinite(rate) and rate > 0):
        raise ContractError(f"{path} has decision_s {rate!r}, but it must be above 0: {AGAIN}.")
    return contract


def check_files(folder: Path, contract: dict[str, Any]) -> None:
    """Raise ContractError if a file of the folder is missing or differs from its hash in the contract."""
    for name, expected in sorted(contract["files"].items()):
        try:
            found = file_hash(folder / name)
        except OSError:
            raise ContractError(f"{name} is missing in {folder}: copy the folder again.") from None
        if found != expected:
            raise ContractError(
                f"{name} in {folder} is cut off or altered (its hash is not that in {CONTRACT}): copy the folder again."
            )


def identity_of(contract: dict[str, Any]) -> str:
    """Return the SHA-256 of a contract without its entries `identity` and `files`."""
    kept = {key: value for key, value in contract.items() if key not in ("identity", "files")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
