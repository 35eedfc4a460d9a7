"""The command line: a module per command, which parses arguments, calls one library function and prints the result.

Exit codes: 2 for misuse, 1 for failure. `group` has what commands share. Importing this package loads no torch.
"""

from fledge.app.command import COMMANDS
from fledge.cli import advise, benchmark, convert, doctor, eval, export, flying, inspect, report, train  # noqa: F401
from fledge.cli.group import main

__all__ = ["main"]

for command in COMMANDS:
    main.add_command(command)
