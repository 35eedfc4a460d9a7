"""Errors of the runtime. Each message is one sentence or two: the problem, and the fix."""


class RuntimeFault(Exception):
    """Root of the errors of fledge_runtime: ContractError and InputError."""


class ContractError(RuntimeFault):
    """A deployment folder is damaged, incomplete, altered, or not for this version or machine."""


class InputError(RuntimeFault):
    """A reading that the pilot was given cannot be used: missing, of a wrong shape, or not finite."""
