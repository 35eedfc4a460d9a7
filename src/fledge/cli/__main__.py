"""`python -m fledge.cli` is `fledge`."""

from fledge.cli import main

main(prog_name="fledge")
