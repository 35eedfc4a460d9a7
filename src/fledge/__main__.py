"""`python -m fledge` is `fledge`."""

from fledge.cli import main

main(prog_name="fledge")
