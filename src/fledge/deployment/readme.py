"""README.md of a deployment folder, for the person with the robot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HEAD = """# {policy}

A policy of Fledge {fledge}, and the runtime that flies it. Needs Python 3.8 or newer and {packages}.

```
pip install {pip}
{build}python -m fledge_runtime verify .
```

`verify` checks every file, recomputes {sequences} recorded sequences, and measures the time of a decision on this machine. Run
it in this folder after copying it, and fly only if it succeeds.
"""
BUILD = "python -m fledge_runtime build    # compiles the planner; without a C compiler, leave it out: slower\n"
PILOT = """
## Fly

```python
import fledge_runtime

deployment = fledge_runtime.load(".")  # raises ContractError with one sentence if something is wrong
pilot = deployment.pilot()
pilot.reset(position_w, goal_w)  # at the start of every flight
while flying:  # every {decision_s:g} s
    command = pilot.step(
        fledge_runtime.Inputs(
            time_s, position_w, velocity_w, quaternion_wxyz, points_w=points{movers}
        )
    )
    send(command.velocity_w)  # m/s, world, to fly until the next decision
```

| input | unit | frame | |
|---|---|---|---|
{inputs}

{flown}World: z up, the ground near 0. Body: x ahead, y left, z up. **Quaternions are w, x, y, z.**

## Limits

{limits}
- Begin each flight with `reset`: it clears {reset}.
- Start with a low speed limit (deploy with `env.speed_limit=1`) and with a pilot who can take over.
"""
FLOWN = """Also give `flown_w`, [3] m/s, world: the velocity that was flown since the last decision, if limits of your own
changed the command. The planner predicts with it; without, it assumes that its command was flown.

"""
NETWORK = """
## Run

```python
import fledge_runtime

policy = fledge_runtime.load(".").policy()
policy.reset()  # at the start of every episode
outputs = policy.act(observations)  # every {decision_s:g} s: {inputs} -> {outputs}
```

contract.json describes the observations and the action.
"""


def write_readme(path: Path, contract: dict[str, Any]) -> None:
    """Write the README.md of a folder with this contract."""
    from fledge.deployment.recording import SEQUENCES

    readings, planner = contract["raw_inputs"], contract["planner"]
    facts = {key: contract[key] for key in ("policy", "fledge", "decision_s")}
    packages = ["numpy", *(["onnxruntime"] if contract["inputs"] else [])]
    needs = {"packages": " and ".join(packages), "pip": " ".join(packages)}
    text = HEAD.format(**facts, **needs, build=BUILD if planner else "", sequences=SEQUENCES)
    if readings is None:
        inputs, outputs = (", ".join(contract[key]) for key in ("inputs", "outputs"))
        text += NETWORK.format(**facts, inputs=inputs, outputs=outputs)
    else:
        rows = [
            f"| `{name}`{shape_text(told['shape'])} | {told['unit']} | {told.get('frame', '')} | {told['doc']} |"
            for name, told in readings.items()
        ]
        movers = ", movers=movers" if "movers" in readings else ""
        flown = FLOWN if planner else ""
        limits, reset = "\n".join(limit_lines(contract)), ", ".join(contract["reset"])
        text += PILOT.format(**facts, inputs="\n".join(rows), movers=movers, limits=limits, reset=reset, flown=flown)
    text += "\n## Evaluated\n\n" + "\n".join(evaluated_lines(contract)) + "\n"
    path.write_text(text, encoding="utf-8")


def shape_text(shape: list[Any]) -> str:
    return f" [{', '.join(map(str, shape))}]" if shape else ""


def limit_lines(contract: dict[str, Any]) -> list[str]:
    """Return the limits of a contract as lines of a list."""
    limits, timing = contract["limits"], contract["timing"]
    lines = [
        f"- Speed: at most {limits['speed_m_s']:g} m/s per axis; commands change by up to {limits['slew_m_s2']:g} m/s².",
        f"- Height: {limits['min_height_m']:g} to {limits['max_height_m']:g} m.",
    ]
    ages = ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in timing["max_age_s"].items())
    lines.append(f"- Largest age of inputs: {ages}. Hold the position if they are older.")
    delays = [(name, *pair) for name, pair in timing["trained_delay_s"].items()]
    told = ", ".join(f"{name} {1e3 * low:.0f} to {1e3 * high:.0f} ms" for name, low, high in delays)
    return [*lines, f"- Delays in training: {told}."]


def evaluated_lines(contract: dict[str, Any]) -> list[str]:
    """Return the results of a contract as lines of a list."""
    rows = contract["evaluated"]
    if not rows:
        return ["Not evaluated: `fledge deploy --evaluate 1024` measures it in the simulator."]
    return [
        f"- {row['env']}: {row['metric']} {row['value']:.3f} (95 % interval {row['interval'][0]:.3f} to "
        f"{row['interval'][1]:.3f}) in {row['episodes']} simulated episodes"
        for row in rows
    ]
