"""The commands that read flight logs: `fledge-runtime identify` and `log`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def add_log_commands(commands: Any) -> None:
    """Add the commands to the parsers of the command line."""
    about = "Fit the drone's response to a flight log; print the settings of the planner."
    sub = commands.add_parser("identify", help=about, description=about)
    sub.add_argument("log", type=Path, metavar="FLIGHT.flog")
    sub.add_argument("folder", type=Path, nargs="?", help="compare with the response in this folder's planner")
    sub.add_argument("--json", action="store_true", help="print the result as one JSON object")
    sub.set_defaults(run=run_identify)

    about = "Print what happened in a flight: events, ages of inputs, gaps, decision times, distance."
    sub = commands.add_parser("log", help=about, description=about)
    sub.add_argument("log", type=Path, metavar="FLIGHT.flog")
    sub.add_argument("--json", action="store_true", help="print the result as one JSON object")
    sub.set_defaults(run=run_log)


def run_identify(given: Any) -> int:
    """Print the response of the drone in a log; return 0."""
    from fledge_runtime.identify import describe, identify

    settings, name = None, "default response"
    if given.folder is not None:
        from fledge_runtime.contract import read_contract

        planner = read_contract(given.folder)["planner"]
        if planner is not None:
            settings, name = planner["settings"], f"response in {given.folder}"
    told = identify(given.log, settings)
    print(json.dumps(told) if given.json else describe(told, name))
    return 0


def run_log(given: Any) -> int:
    """Print what happened in a flight; return 0."""
    from fledge_runtime.flight_report import describe, report

    told = report(given.log)
    print(json.dumps(told) if given.json else "\n".join(describe(told)))
    return 0
