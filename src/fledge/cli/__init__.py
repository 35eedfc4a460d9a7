"""The command line: each command parses, calls one function, and prints. Exit 2 on misuse, 1 on failure.

group       what all commands share: errors as one sentence, options that several have
flying      eval, benchmark, report
envelope    envelope
training    train, advise
files       export, inspect, doctor, convert
Those of the browser app are `fledge.app.command`'s.
"""

from fledge.app.command import COMMANDS
from fledge.cli import envelope, files, flying, training
from fledge.cli.group import main

__all__ = ["envelope", "main"]

for module in (training, flying, files):
    for command in module.COMMANDS:
        main.add_command(command)
for command in COMMANDS:
    main.add_command(command)
