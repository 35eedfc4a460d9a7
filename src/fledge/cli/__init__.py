"""The command line: a module per command, which parses arguments, calls one library function and prints the result.

Exit codes: 2 for misuse, 1 for failure. `group` has what commands share. Importing this package loads no torch.
"""

from fledge.cli import (  # noqa: F401
    advise,
    benchmark,
    convert,
    doctor,
    envelope,
    eval,
    export,
    inspect,
    play,
    replay,
    report,
    train,
    watch,
)
from fledge.cli.group import main

__all__ = ["main"]
