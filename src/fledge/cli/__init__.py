"""The command line: each command parses, calls one function, and prints. Exit 2 on misuse, 1 on failure.

group       what all commands share: errors as one sentence, options that several have
flying      eval, benchmark, report, envelope
training    train, advise
files       export, inspect, doctor, convert
watch, replay, play    the browser app, opened at one of its pages; serving: what they share
"""

from fledge.cli import files, flying, training
from fledge.cli.group import main
from fledge.cli.play import play
from fledge.cli.replay import replay
from fledge.cli.watch import watch

__all__ = ["main"]

for module in (training, flying, files):
    for command in module.COMMANDS:
        main.add_command(command)
for command in (watch, replay, play):
    main.add_command(command)
