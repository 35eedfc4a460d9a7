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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from fledge_runtime.errors import ContractError, RuntimeFault

FORMAT, VERSION = "fledge deployment", 1
CONTRACT, POLICY, GOLDEN = "contract.json", "policy.onnx", "golden.npz"
MOST_ROWS = 1000
NEEDED = ("identity", "files", "decision_s", "inputs", "outputs", "observation", "action", "raw_inputs", "planner")
KINDS = {"files": dict, "inputs": list, "outputs": list, "observation": dict}
KINDS_OR_NULL = {"raw_inputs": dict, "planner": dict, "sensor": dict, "memory": dict}
AGAIN = "run `fledge deploy` again"


def read_contract(folder: Path) -> dict[str, Any]:
    """Return a folder's contract, without checking the other files.

    Raises:
        ContractError: if it cannot be read, is of a newer format, or was changed after it was written.
    """
    path = folder / CONTRACT
    try:
        contract = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError:
        raise ContractError(f"{path} cannot be read: permission denied.") from None
    except OSError:
        raise ContractError(f"{path} cannot be read: give a folder that `fledge deploy` wrote.") from None
    except (ValueError, RecursionError):
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
    wrong = wrong_value(contract)
    if wrong:
        raise ContractError(f"{path} has {wrong}: {AGAIN}.")
    return contract


def wrong_value(contract: dict[str, Any]) -> str:
    """Return what is wrong with the values of a contract; empty if nothing is."""
    for name, kind in {**KINDS, **KINDS_OR_NULL}.items():
        value = contract.get(name)
        if not isinstance(value, kind) and (name in KINDS or value is not None):
            return f"{name} of the wrong kind"
    rate = contract["decision_s"]
    if not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
        return f"decision_s {rate!r}, but it must be above 0"
    unhashed = {GOLDEN, *([POLICY] if contract["inputs"] else [])} - {*contract["files"]}
    if unhashed:
        return f"no hash of {', '.join(sorted(unhashed))}"
    if contract["raw_inputs"] is not None:
        rows = (contract.get("sensor") or {}).get("mover_rows")
        if not isinstance(rows, int) or not 0 <= rows <= MOST_ROWS:
            return f"sensor.mover_rows {rows!r}, but it must be 0 to {MOST_ROWS}"
    planner = contract["planner"]
    if planner is not None and not isinstance(planner.get("settings"), dict):
        return "a planner without settings"
    return ""


@contextmanager
def as_contract_error(folder: Path) -> Iterator[None]:
    """Raise what a contract or file with impossible values leads to as ContractError."""
    try:
        yield
    except ContractError:
        raise
    except RuntimeFault as error:
        raise ContractError(f"The folder {folder} does not pass its own check: {error}") from None
    except PermissionError as error:
        raise ContractError(f"{error.filename or folder} cannot be read: permission denied.") from None
    except Exception as error:
        text = " ".join(str(error).split())[:120]
        raise ContractError(
            f"The files in {folder} do not fit each other ({type(error).__name__}: {text}): copy the folder again, or {AGAIN}."
        ) from None


def check_files(folder: Path, contract: dict[str, Any]) -> None:
    """Raise ContractError if a file of the folder is missing or differs from its hash in the contract."""
    for name, expected in sorted(contract["files"].items()):
        try:
            found = file_hash(folder / name)
        except PermissionError:
            raise ContractError(f"{name} in {folder} cannot be read: permission denied.") from None
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
