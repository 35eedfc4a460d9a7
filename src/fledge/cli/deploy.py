"""`fledge deploy`: write a folder that flies a policy on a robot."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import PATH, as_json, as_settings, main, task_option


@main.command()
@click.argument("policy")
@click.argument("folder", type=PATH)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@task_option
@click.option(
    "--evaluate",
    type=click.IntRange(0),
    default=0,
    metavar="EPISODES",
    help="Evaluate the policy on held-out episodes, and write the results to the contract.",
)
@as_json
def deploy(
    policy: str, folder: Path, overrides: tuple[str, ...], task: str | None, evaluate: int, as_json: bool
) -> None:
    """Write a FOLDER that flies POLICY on a robot, without Fledge.

    The robot needs Python 3.8 or newer, NumPy and onnxruntime. FOLDER has the network, its contract (inputs, outputs,
    units, frames, rates, limits), golden sequences, a README.md and the runtime's source. Copy it to the robot and run
    `python -m fledge_runtime verify .` in it. KEY=VALUE changes a setting of the env config in the contract, such as
    env.speed_limit=1.

    POLICY may be the scripted planner, such as 'planner(guard=true)': then there is no network, and the robot needs neither
    onnxruntime nor training. On it, `python -m fledge_runtime build` compiles the planner (needs a C compiler); without,
    NumPy plans, slower. `fledge-runtime identify FLIGHT.flog` prints the settings of a drone's response.
    """
    from fledge.deployment.api import deploy as write_folder

    done = write_folder(
        policy, folder, task=task, evaluate=evaluate, progress=not as_json, **as_settings(overrides, write_folder)
    )
    if as_json:
        return click.echo(json.dumps(done.to_dict()))
    figures, readings = done.figures, done.contract["raw_inputs"]
    click.echo(
        f"{done.path}: {done.bytes / 1e6:.1f} MB, {figures['sequences']} golden sequences, flown from "
        f"{', '.join(readings or done.contract['inputs'])}"
    )
    if readings is None:
        click.echo(
            "Its observations are the task's own, so the runtime flies the network alone: observations in, action out."
        )
    planner = f" (planner: {figures['planner']})" if figures["planner"] else ""
    click.echo(
        f"On this machine {figures['ms']['p50']:.2f} ms per decision{planner}. Copy the folder and run on the robot:"
    )
    if figures["planner"]:
        click.echo("  python -m fledge_runtime build    # compiles the planner: without, NumPy plans, slower")
    click.echo("  python -m fledge_runtime verify .")
