"""The command line: commands parse arguments, call one library function and print the result.

Exit codes: 2 for misuse, 1 for failure. `group` has what commands share. Importing this package loads no torch.
"""

from fledge.cli import advise, benchmark, browser, envelope, eval, export, files, report, train  # noqa: F401
from fledge.cli.group import main

__all__ = ["main"]
