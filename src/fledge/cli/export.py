"""`fledge export`: write a policy for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import PATH, as_json, as_settings, main, task_option


@main.command()
@click.argument("policy")
@click.argument("file", type=PATH)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@task_option
@click.option(
    "--golden",
    type=PATH,
    help="Also write observations of a flight and the policy's actions, to test other programs (.npz).",
)
@as_json
def export(
    policy: str, file: Path, overrides: tuple[str, ...], task: str | None, golden: Path | None, as_json: bool
) -> None:
    """Write POLICY to FILE: .onnx or .ts for other programs, .fledge for the weights alone.

    Prints how far the actions of FILE differ from those of POLICY. Inputs are the observations that the policy reads; the
    output is its deterministic action (for DQN, the value of every action). The file carries a contract: meaning, units
    and frames of inputs and outputs, and the decision rate; --json prints it. If an input is computed from other
    observations, such as a plan, the command says so. KEY=VALUE changes a setting of the env config in the file; for a
    .fledge file, policy.KEY=true also turns on an option of the policy.
    """
    from fledge.evaluation.api import export as export_policy

    result = export_policy(policy, file, task=task, golden=golden, **as_settings(overrides, export_policy))
    if as_json:
        return click.echo(json.dumps(result.to_dict()))
    click.echo(f"{result.path}: {result.bytes / 1e6:.2f} MB, differs from the policy by {result.max_difference:.1e}")
    for name, told in result.contract.get("observation", {}).items():
        if "computed_by" in told:
            sources = ", ".join(told["computed_from"])
            click.echo(
                f"The input {name} is not a sensor reading, but computed from {sources}: `fledge deploy` writes a folder that "
                "computes it (docs/guides/deploy.md)."
            )
    if (memory := result.contract.get("memory")) is not None:
        click.echo(
            f"The policy is recurrent: pass zeros as {memory['input']} at the first decision of an episode, then the "
            f"{memory['output']} of the decision before."
        )
    if golden is not None:
        click.echo(f"{golden}: {result.figures['golden_cases']} cases to test it with")
