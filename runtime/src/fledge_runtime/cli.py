"""`fledge-runtime verify FOLDER`: check a deployment folder on this machine. `info`: what it flies. `build`: compile the
planner."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fledge_runtime.commands import add_commands
from fledge_runtime.errors import ContractError, RuntimeFault, UsageError
from fledge_runtime.log_commands import add_log_commands


def main(words: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 with one sentence on stderr if something is wrong; 2 if a value that was given is."""
    parser = argparse.ArgumentParser(prog="fledge-runtime", description="Fly a folder that `fledge deploy` wrote.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (function, about) in COMMANDS.items():
        sub = commands.add_parser(name, help=about, description=about)
        if function is not run_build:
            sub.add_argument("folder", type=Path, nargs="?", default=Path("."), help="by default, this folder")
            sub.add_argument("--json", action="store_true", help="print the result as one JSON object")
        sub.set_defaults(run=function)
    add_commands(commands)
    add_log_commands(commands)
    given = parser.parse_args(words)
    if given.command is None:
        parser.print_help()
        return 2
    code = 1
    try:
        code = int(given.run(given) or 0)
        sys.stdout.flush()
    except RuntimeFault as error:
        print(f"fledge-runtime: {error}", file=sys.stderr)
        code = 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # the reader of the output is gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def run_verify(given: Any) -> int:
    from fledge_runtime.verify import verify

    facts = verify(given.folder)
    if given.json:
        print(json.dumps(facts))
        return 0
    versions, ms = facts["versions"], facts["ms"]
    print(f"{facts['policy']}: {', '.join(f'{name} {value}' for name, value in versions.items())}")
    if facts["planner"]:
        print(f"planner: {facts['planner']}")
    worst = ", ".join(f"{stage} {value:.0e}" for stage, value in facts["largest_difference"].items())
    print(f"{facts['sequences']} golden sequences, {facts['decisions']} decisions: equal (largest difference: {worst})")
    print(
        f"ms per decision: p50 {ms['p50']:.2f}, p99 {ms['p99']:.2f}, worst {ms['worst']:.2f} of {facts['decision_ms']:g}"
    )
    if ms["p99"] > facts["decision_ms"]:
        print("This machine is too slow: a decision takes longer than the time between two.", file=sys.stderr)
        return 1
    return 0


def run_info(given: Any) -> int:
    from fledge_runtime.contract import read_contract

    contract = read_contract(given.folder)
    if given.json:
        print(json.dumps(contract))
        return 0
    print(
        f"{contract['policy']}, written by Fledge {contract['fledge']}; {1 / contract['decision_s']:.1f} decisions per second"
    )
    readings = contract["raw_inputs"]
    print(f"flown from: {', '.join(readings or contract['inputs'])}")
    for name, value in (contract.get("limits") or {}).items():
        print(f"{name}: {value}")
    for name, value in contract.get("timing", {}).get("max_age_s", {}).items():
        print(f"largest age of {name}: {value:g} s")
    for row in contract.get("evaluated") or ():
        low, high = row["interval"]
        print(
            f"{row['metric']} {row['value']:.3f} ({low:.3f} to {high:.3f}) in {row['episodes']} episodes: {row['env']}"
        )
    if not contract.get("evaluated"):
        print("not evaluated")
    return 0


def run_build(given: Any) -> int:
    from fledge_runtime import native

    try:
        print(f"{native.build(native.FOLDER / native.LIBRARY)}: built")
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (
            (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip().splitlines()[-1]
        )
        raise ContractError(
            f"The planner's C library cannot be built ({reason}): install a C compiler, or fly without, slower."
        ) from None
    return 0


COMMANDS = {
    "verify": (run_verify, "Check hashes, golden sequences and timing on this machine."),
    "build": (run_build, "Compile the planner's C library on this machine, for policies that read a plan."),
    "info": (run_info, "Print what the folder flies: inputs, limits, rates, evaluations."),
}

if __name__ == "__main__":
    sys.exit(main())
