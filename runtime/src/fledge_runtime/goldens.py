"""Golden sequences: readings of recorded flights with what Fledge computes from them, decision by decision.

S sequences of `length` decisions lie one after the other in arrays of D rows. Every sequence begins with a reset.

    meta            JSON: version, identity of the contract, decision_s
    length          [S]
    obs_NAME        [D, ...] observations, also those that the planner computes
    out_NAME        [D, ...] outputs of the network
and, if the folder is flown from readings:
    start_w, goal_w [S, 3];  time_s [D], position_w, velocity_w [D, 3], quaternion_wxyz [D, 4]
    points          [6, sum of point_count] bytes of the points around position_w, in units of point_unit_m (`pack_points`)
    movers          [sum of mover_count, 8] centre, velocity, width, height
    command_w       [D, 3]
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.errors import ContractError
from fledge_runtime.inputs import Inputs

VERSION = 1
ROWS = ("time_s", "position_w", "velocity_w", "quaternion_wxyz", "command_w", "point_count", "mover_count")


class Goldens:
    """Golden sequences, by their arrays as above; `read` reads and checks a file."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays
        self.starts = np.concatenate([[0], np.cumsum(arrays["length"])]).astype(int)
        if "points" in arrays:
            self.point_ends = np.cumsum(arrays["point_count"]).astype(int)
            self.mover_ends = np.cumsum(arrays["mover_count"]).astype(int)
            self.points = unpack_points(arrays["points"])

    @classmethod
    def read(cls, path: Path, contract: dict[str, Any]) -> Goldens:
        """Return the golden sequences of a file.

        Raises:
            ContractError: if it is damaged, of another version, or belongs to another contract.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            meta = json.loads(str(arrays.pop("meta")))
            goldens = cls(arrays)
            whole = goldens.whole() and {"version", "decision_s", "identity"} <= {*meta}
        except PermissionError:
            raise ContractError(f"{path} cannot be read: permission denied.") from None
        except Exception:  # zipfile and NumPy raise whatever a damaged file leads to
            whole = False
        if not whole:
            raise ContractError(f"{path} is cut off, damaged or not a file of golden sequences: copy the folder again.")
        if meta["version"] != VERSION:
            raise ContractError(
                f"{path} has version {meta['version']}, but this fledge_runtime reads {VERSION}: use the one in the folder."
            )
        if meta["decision_s"] != contract["decision_s"]:
            raise ContractError(
                f"{path} was recorded at {meta['decision_s']:g} s per decision, but the contract says "
                f"{contract['decision_s']:g}: run `fledge deploy` again."
            )
        if meta["identity"] != contract["identity"]:
            raise ContractError(f"{path} belongs to another policy or contract: copy the folder again.")
        return goldens

    def whole(self) -> bool:
        """Return whether there are sequences, of numbers, and every array has a row for each of their decisions."""
        length, total = self.arrays["length"], int(self.starts[-1])
        rows = [value for name, value in self.arrays.items() if name.startswith(("obs_", "out_")) or name in ROWS]
        numbers = all(value.dtype.kind in "fiub" for value in self.arrays.values())
        some = length.ndim == 1 and length.dtype.kind in "iu" and len(length) > 0 and bool((length > 0).all())
        return some and numbers and len(rows) > 0 and all(len(value) == total for value in rows)

    @property
    def sequences(self) -> int:
        return len(self.arrays["length"])

    def decisions(self, sequence: int) -> range:
        """Return the rows of a sequence."""
        return range(self.starts[sequence], self.starts[sequence + 1])

    def observations(self, row: int) -> dict[str, np.ndarray]:
        return {name[4:]: values[row] for name, values in self.arrays.items() if name.startswith("obs_")}

    def outputs(self, row: int) -> dict[str, np.ndarray]:
        return {name[4:]: values[row] for name, values in self.arrays.items() if name.startswith("out_")}

    def inputs(self, row: int) -> Inputs:
        """Return the readings of a decision."""
        a, position = self.arrays, self.arrays["position_w"][row].astype(np.float64)
        first, last = self.point_ends[row] - a["point_count"][row], self.point_ends[row]
        around = self.points[first:last] * float(a["point_unit_m"])
        begin, end = self.mover_ends[row] - a["mover_count"][row], self.mover_ends[row]
        pose = a["velocity_w"][row], a["quaternion_wxyz"][row]
        return Inputs(
            float(a["time_s"][row]),
            position,
            *pose,
            points_w=position + around,
            movers=a["movers"][begin:end] if end > begin else None,
        )


def pack_points(units: np.ndarray) -> np.ndarray:
    """Return points [P, 3] int16 as bytes that compress well, [6, P] uint8."""
    steps = np.diff(units.astype(np.int16), axis=0, prepend=np.zeros((1, 3), np.int16)).astype("<i2")
    return np.ascontiguousarray(steps.view(np.uint8).reshape(-1, 6).T)


def unpack_points(packed: np.ndarray) -> np.ndarray:
    """Return what `pack_points` packed, [P, 3] int16."""
    steps = np.ascontiguousarray(packed.T).view("<i2")
    return np.cumsum(steps, axis=0, dtype=np.int16)
