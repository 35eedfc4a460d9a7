"""Golden sequences of a deployment folder: recorded readings, and what Fledge computes from them.

The chain runs as on the robot: observations by fledge_runtime, compared here with the simulator's; the plan by Fledge's
planner, with the memory of the sequence; the network by torch, with its state; the command by the contract. The robot then
compares its own results, stage by stage (`fledge_runtime.verify`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.agents.base import STATE_IN, STATE_OUT
from fledge.core.code import find_object
from fledge.core.errors import FledgeError
from fledge.deployment.recording import LONG, Moment, choose_sequences, record, short_length
from fledge.tasks.policy_loader import LoadedPolicy
from fledge.tasks.robot import Readings

UNITS = 32_000  # of int16 for the largest range
NEAR_M = 1e-4  # largest difference of an observation from the simulator's, besides the rounding of points

Sequences = list[tuple[int, range]]


def write_goldens(policy: LoadedPolicy, cfg: Any, contract: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write golden.npz and return facts about it: sequences, decisions, slew, largest differences from the simulator."""
    from_readings, short = contract["raw_inputs"] is not None, short_length(contract)
    moments = record(policy, cfg, from_readings, LONG * short)
    sequences = choose_sequences(moments, short)
    arrays: dict[str, Any] = {"length": np.array([len(steps) for _, steps in sequences], np.int32)}
    facts: dict[str, Any] = {"sequences": len(sequences), "decisions": int(arrays["length"].sum())}
    if from_readings:
        arrays |= pack_readings(moments, sequences, contract)
        observed, facts["largest_difference"] = observe(moments, sequences, contract, arrays)
    else:
        observed = {name: stack(sequences, moments, name) for name in policy.agent.observes}
    if contract["inputs"]:
        outputs = chain(policy, contract, observed, arrays["length"])
    else:
        outputs = {"action": plan_alone(policy.agent, cfg, contract, observed, arrays["length"])}
    arrays |= {f"obs_{name}": value for name, value in observed.items()}
    arrays |= {f"out_{name}": value for name, value in outputs.items()}
    if from_readings:
        arrays["command_w"], facts["slew_m_s2"] = commands(contract, arrays)
    facts["arrays"], facts["path"] = arrays, path
    return facts


def save_goldens(facts: dict[str, Any], contract: dict[str, Any]) -> None:
    """Write the file, with the identity of the finished contract."""
    from fledge_runtime.goldens import VERSION

    meta = {"version": VERSION, "identity": contract["identity"], "decision_s": contract["decision_s"]}
    np.savez_compressed(facts["path"], meta=np.array(json.dumps(meta)), **facts["arrays"])


def stack(sequences: Sequences, moments: Sequence[Moment], name: str) -> np.ndarray:
    """Return an observation of all sequences, one after the other, [D, ...]."""
    return np.stack([moments[k].obs[name][row] for row, steps in sequences for k in steps])


def pack_readings(moments: Sequence[Moment], sequences: Sequences, contract: dict[str, Any]) -> dict[str, Any]:
    """Return the readings of all sequences in the arrays of golden.npz."""
    from fledge_runtime.goldens import pack_points

    unit = contract["sensor"]["range_m"] / UNITS
    rows: list[tuple[Readings, int]] = []
    for row, steps in sequences:
        for k in steps:
            readings = moments[k].readings
            assert readings is not None
            rows.append((readings, row))
    first = np.cumsum([0, *(len(steps) for _, steps in sequences)])[:-1]
    packed = {
        name: np.stack([getattr(r, name)[i] for r, i in rows]).astype(np.float32)
        for name in ("start_w", "goal_w", "position_w", "velocity_w", "quaternion_wxyz")
    }
    ends = {name: packed.pop(name)[first] for name in ("start_w", "goal_w")}
    around = [np.rint((r.points_w[i] - r.position_w[i]) / unit).astype(np.int16) for r, i in rows]
    counts, read = np.array([len(p) for p in around], np.int32), "movers" in contract["raw_inputs"]
    movers = [r.movers[i] if read else np.zeros((0, 8), np.float32) for r, i in rows]
    return {
        **ends,
        **packed,
        "time_s": np.concatenate([contract["decision_s"] * np.arange(len(steps)) for _, steps in sequences]),
        "point_unit_m": np.array(unit),
        "point_count": counts,
        "points": pack_points(np.concatenate(around)),
        "mover_count": np.array([len(m) for m in movers], np.int32),
        "movers": np.concatenate(movers).astype(np.float32).reshape(-1, 8),
    }


def observe(
    moments: Sequence[Moment], sequences: Sequences, contract: dict[str, Any], arrays: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the runtime's observations of all decisions [D, ...], and their largest differences from the simulator's.

    Raises:
        FledgeError: if they differ by more than the rounding of points explains.
    """
    from fledge_runtime.goldens import Goldens
    from fledge_runtime.observe import Observer

    goldens, observer = Goldens(arrays), Observer(contract)
    planner = contract["planner"] or {"computes": (), "reads": ()}
    names = {*contract["inputs"], *planner["reads"]} - {*planner["computes"], STATE_IN}
    observed: dict[str, list[np.ndarray]] = {name: [] for name in sorted(names)}
    for s in range(goldens.sequences):
        observer.reset(arrays["start_w"][s], arrays["goal_w"][s])
        for row in goldens.decisions(s):
            seen = observer.read(goldens.inputs(row))
            for name, values in observed.items():
                values.append(seen[name])
    result = {name: np.stack(values) for name, values in observed.items()}
    worst = {}
    for name, value in result.items():
        expected = stack(sequences, moments, name)
        away = np.abs(value - expected)
        if name == "lidar":  # the nearest hits may round into the blind zone
            blind = expected >= contract["sensor"]["range_m"] - contract["sensor"]["min_range_m"] - 1e-3
            away = np.where(blind, 0.0, away)
        worst[name] = float(away.max())
        allowed = NEAR_M + (2.0 * float(arrays["point_unit_m"]) if name == "lidar" else 0.0)
        if not worst[name] <= allowed:
            raise FledgeError(
                f"The runtime's observation {name} differs from the simulator's by {worst[name]:.2e}, more than "
                f"{allowed:.0e}: this env cannot be deployed."
            )
    return result, worst


def chain(
    policy: LoadedPolicy, contract: dict[str, Any], observed: dict[str, np.ndarray], lengths: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the network's outputs of all decisions [D, ...], and add what the planner computes to `observed`.

    All sequences run at once; one that is over repeats its last decision, whose results are left out.
    """
    first = np.cumsum([0, *lengths])[:-1]
    module, agent, planner = policy.agent.exported().eval(), policy.agent, contract["planner"]
    reader = None
    if planner is not None:
        found = find_object(planner["computed_by"])
        reader = found.from_contract({"observation": {"plan": {"env": planner["settings"]}}}, len(lengths))
        told = {name: contract["observation"][name] for name in planner["computes"]}
        for name in planner["computes"]:
            observed[name] = np.zeros((int(lengths.sum()), *told[name]["shape"]), np.float32)
    flown: Any = None
    results: dict[str, np.ndarray] = {}
    state = torch.zeros(len(lengths), agent.hidden_size)
    for step in range(int(lengths.max())):
        rows, live = first + np.minimum(step, lengths - 1), step < lengths
        obs = {name: torch.as_tensor(value[rows]) for name, value in observed.items()}
        if reader is not None:
            computed = {"plan": reader.read(obs, flown), "dynamic_obstacle": reader.tracked}
            for name in planner["computes"]:
                obs[name] = computed[name].reshape(-1, *told[name]["shape"])
                observed[name][rows[live]] = obs[name].numpy()[live]
        obs[STATE_IN] = state
        with torch.no_grad():
            outs = dict(zip(agent.export_outputs, module(*(obs[name] for name in agent.export_inputs)), strict=True))
        state, flown = outs.pop(STATE_OUT, state), outs.get("action")
        for name, value in outs.items():
            kept = results.setdefault(name, np.zeros((int(lengths.sum()), *value.shape[1:]), value.numpy().dtype))
            kept[rows[live]] = value.numpy()[live]
    return results


def plan_alone(
    agent: Any, cfg: Any, contract: dict[str, Any], observed: dict[str, np.ndarray], lengths: np.ndarray
) -> np.ndarray:
    """Return the actions of all decisions, [D, ...], of a planner that flies without a network; sequences as in `chain`."""
    first, told = np.cumsum([0, *lengths])[:-1], contract["observation"]
    tracked = {name: torch.zeros(len(lengths), *told[name]["shape"]) for name in agent.observes if name not in observed}
    agent.configure(cfg)
    agent.reset()
    results = np.zeros((int(lengths.sum()), *contract["action"]["action"]["shape"]), np.float32)
    for step in range(int(lengths.max())):
        rows, live = first + np.minimum(step, lengths - 1), step < lengths
        obs = {name: torch.as_tensor(value[rows]) for name, value in observed.items()}
        results[rows[live]] = agent.act({**tracked, **obs}).numpy()[live]
    return results


def commands(contract: dict[str, Any], arrays: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Return the commands of all decisions [D, 3], m/s, world, and their largest change between two decisions, m/s²."""
    along = (arrays["goal_w"] - arrays["start_w"])[:, :2].astype(np.float64)
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-6)
    c, s = np.repeat(along, arrays["length"], axis=0).T
    x, y, z = ((2.0 * arrays["out_action"].astype(np.float64) - 1.0) * contract["limits"]["speed_m_s"]).T
    velocity = np.stack([c * x - s * y, s * x + c * y, z], axis=1)
    within = np.ones(len(velocity) - 1, bool)
    within[np.cumsum(arrays["length"])[:-1] - 1] = False
    steps = np.linalg.norm(np.diff(velocity, axis=0), axis=1)[within]
    return velocity, float(steps.max(initial=0.0)) / contract["decision_s"]
