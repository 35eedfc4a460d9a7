"""Run the command line as `python -m fledge.cli`, the same as the command `fledge`."""

from fledge.cli import main

main(prog_name="fledge")
