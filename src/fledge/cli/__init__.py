"""The command line: a module per command, which parses arguments, calls one library function and prints the result.

Exit codes: 2 for misuse, 1 for failure. `group` has what several commands share. Importing this package does not load torch.
"""

from fledge.cli import actor, advise, benchmark, convert, deploy, doctor, envelope, eval, export  # noqa: F401

from fledge.cli import inspect, learn_on, play, replay, report, train, tune, watch, world  # noqa: F401  # isort: skip
from fledge.cli.group import main

__all__ = ["main"]
