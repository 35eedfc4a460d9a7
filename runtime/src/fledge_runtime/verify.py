"""Check a deployment folder on the machine that shall fly it: hashes, golden sequences, timing."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.contract import GOLDEN, as_contract_error
from fledge_runtime.errors import ContractError
from fledge_runtime.goldens import Goldens
from fledge_runtime.pilot import Deployment, load

ATOL, RTOL = 1e-5, 1e-6
STAGES = ("observe", "plan", "network", "command")
SAID = {
    "observe": "the contract's frames or sensor geometry do not fit this policy",
    "plan": "the planner or its settings are not those of this policy",
    "network": "policy.onnx is not this policy, or onnxruntime computes it wrongly",
    "command": "the limits or frames of the contract do not fit this policy",
}


def verify(folder: Path) -> dict[str, Any]:
    """Check everything and return facts: versions, sequences, decisions, largest differences, milliseconds per decision.

    Raises:
        ContractError: with the first thing that is wrong.
    """
    begun = time.perf_counter()
    deployment = load(folder, goldens=False)
    goldens = Goldens.read(Path(folder) / GOLDEN, deployment.contract)
    with as_contract_error(deployment.folder):
        worst = check(deployment, goldens)
    return {
        "folder": str(folder),
        "policy": deployment.contract.get("policy"),
        "versions": versions(),
        "planner": planner_name(deployment),
        "sequences": goldens.sequences,
        "decisions": int(goldens.starts[-1]),
        "largest_difference": worst,
        "ms": timing(deployment, goldens),
        "decision_ms": 1e3 * deployment.contract["decision_s"],
        "seconds": time.perf_counter() - begun,
    }


def check(deployment: Deployment, goldens: Goldens, sequences: int | None = None) -> dict[str, float]:
    """Fly golden sequences (None: all); return the largest difference of each stage.

    Raises:
        ContractError: at the first decision that differs by more than 1e-5.
    """
    worst: dict[str, float] = {}
    for sequence in range(goldens.sequences)[:sequences]:
        steps = readings_steps if deployment.takes_readings else observation_steps
        for stage, name, row, ours, expected in steps(deployment, goldens, sequence):
            if ours.shape != expected.shape:
                raise ContractError(f"{name} has shape {list(ours.shape)}, not {list(expected.shape)}: {SAID[stage]}.")
            away = np.abs(ours.astype(np.float64) - expected)
            difference = float(away.max()) if away.size else 0.0
            if not (away <= ATOL + RTOL * np.abs(expected)).all():
                raise ContractError(
                    f"Golden sequence {sequence}, decision {row - goldens.starts[sequence]}: {name} differs by "
                    f"{difference:.1e} from Fledge's ({stage}): {SAID[stage]}. Run `fledge deploy` again."
                )
            worst[stage] = max(worst.get(stage, 0.0), difference)
    return worst


def observation_steps(deployment: Deployment, goldens: Goldens, sequence: int) -> Any:
    """Yield (stage, name, row, ours, expected) for a folder that is flown from observations."""
    policy = deployment.policy()
    for row in goldens.decisions(sequence):
        ours = policy.act(goldens.observations(row))
        for name, expected in goldens.outputs(row).items():
            yield "network", name, row, ours[name], expected


def readings_steps(deployment: Deployment, goldens: Goldens, sequence: int) -> Any:
    """Yield (stage, name, row, ours, expected) for a folder that is flown from readings.

    Every stage gets Fledge's results of the stages before; `command` is also compared for a pilot that flies on its own.
    """
    alone, pilot = deployment.pilot(), deployment.pilot()
    ends = goldens.arrays["start_w"][sequence], goldens.arrays["goal_w"][sequence]
    alone.reset(*ends)
    pilot.reset(*ends)
    planner = deployment.contract["planner"]
    computed, flown = planner["computes"] if planner else (), None
    for row in goldens.decisions(sequence):
        inputs, expected = goldens.inputs(row), goldens.observations(row)
        seen = pilot.observer.read(inputs)
        for name in (name for name in expected if name not in computed):
            yield "observe", name, row, seen[name], expected[name]
        obs = {**seen, **{name: value for name, value in expected.items() if name not in computed}}
        pilot.complete(obs, flown)
        for name in computed:
            yield "plan", name, row, obs[name], expected[name]
        action, golden = pilot.act(expected), goldens.outputs(row)["action"]
        flown = golden if pilot.policy else None
        yield "network" if pilot.policy else "plan", "action", row, action, golden
        command = goldens.arrays["command_w"][row]
        yield "command", "velocity_w", row, pilot.to_velocity(golden), command
        yield "command", "velocity_w from readings", row, alone.step(inputs).velocity_w, command


def timing(deployment: Deployment, goldens: Goldens, decisions: int = 1000) -> dict[str, float]:
    """Return milliseconds per decision on this machine, from readings (or observations) to the action."""
    rows = [row for sequence in range(goldens.sequences) for row in goldens.decisions(sequence)][:decisions]
    spans = []
    if deployment.takes_readings:
        pilot = deployment.pilot()
        given: list[Any] = [goldens.inputs(row) for row in rows]
        pilot.reset(goldens.arrays["start_w"][0], goldens.arrays["goal_w"][0])
        for k, inputs in enumerate(given):
            inputs.time_s = float(k)
        step: Any = pilot.step
    else:
        given = [goldens.observations(row) for row in rows]
        step = deployment.policy().act
    for inputs in given:
        before = time.perf_counter()
        step(inputs)
        spans.append(1e3 * (time.perf_counter() - before))
    return {
        "p50": float(np.percentile(spans, 50)),
        "p99": float(np.percentile(spans, 99)),
        "worst": max(spans),
        "decisions": len(spans),
    }


def planner_name(deployment: Deployment) -> str | None:
    """Return which implementation of the planner flies, None if the policy reads no plan."""
    planner = deployment.planner()
    return None if planner is None else str(getattr(planner, "name", type(planner).__name__))


def versions() -> dict[str, str]:
    from fledge_runtime import __version__

    found = {"fledge_runtime": __version__, "python": platform.python_version(), "numpy": np.__version__}
    try:
        import onnxruntime
    except ImportError:  # a planner without a network does not need it
        pass
    else:
        found["onnxruntime"] = onnxruntime.__version__
    return {**found, "machine": platform.machine()}
