"""Errors of the runtime. Each message is one sentence or two: the problem, and the fix."""


class RuntimeFault(Exception):
    """Root of the errors of fledge_runtime: ContractError, InputError and UsageError."""


class ContractError(RuntimeFault):
    """A deployment folder is damaged, incomplete, altered, or not for this version or machine."""


class InputError(RuntimeFault):
    """A reading that the pilot was given cannot be used: missing, of a wrong shape, or not finite."""


class UsageError(RuntimeFault):
    """A command was given a value that it cannot use; the command line exits with 2."""
