"""Read this process's rank, and the address of rank 0, from the environment that a launcher sets.

    torchrun, Kubernetes (PyTorchJob)   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
    srun (Slurm)                        SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST
    mpirun (Open MPI)                   OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK; MASTER_ADDR

Variables of the first line win, and an empty one counts as unset. Slurm also sets variables in an interactive shell and in a
job script outside of srun; only a step of several tasks counts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fledge.core.errors import ConfigError

PORTS = range(20_000, 32_000)  # below the ports that the system gives to outgoing connections
INTERACTIVE_STEP, LAST_STEP = 0xFFFF_FF00, 0xFFFF_FFFF  # step ids that are Slurm's own: job scripts, interactive shells


@dataclass(frozen=True)
class Launcher:
    """Names of the variables in which a launcher writes the rank, the number of ranks and the number on this host."""

    name: str
    rank: str
    size: str
    local: str


LAUNCHERS = (
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)


@dataclass(frozen=True)
class Place:
    """This process's rank among `size` ranks, as a launcher set it; `local` is None if only the hosts' names can tell."""

    rank: int
    size: int
    local: int | None


def place_from_environment() -> Place | None:
    """Return this process's rank and the number of ranks; None if it is the only process, or starts the others itself.

    Raises:
        ConfigError: A variable is missing, is not a whole number in its range, or contradicts another one.
    """
    launcher = find_launcher()
    if not is_set("WORLD_SIZE") and launcher is None:
        refuse_missing_torchrun()
        return None
    of = launcher or Launcher("", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    size = read_variable("WORLD_SIZE" if is_set("WORLD_SIZE") else of.size, 1)
    if size == 1 and not is_set("RANK"):
        return Place(0, 1, 0)
    rank = read_variable("RANK" if is_set("RANK") or launcher is None else of.rank, 0, size - 1)
    if launcher and size > 1 and not is_set("TORCHELASTIC_RUN_ID"):  # torchrun may itself be started by srun
        for name, number, theirs in (("WORLD_SIZE", size, launcher.size), ("RANK", rank, launcher.rank)):
            if number != read_variable(theirs, 0):
                raise ConfigError(
                    f"The environment variables contradict each other: {name}={number}, but {launcher.name} set {theirs}="
                    f"{os.environ[theirs]}. Unset RANK and WORLD_SIZE; for a separate training in each task, set WORLD_SIZE=1."
                )
    name = "LOCAL_RANK" if is_set("LOCAL_RANK") else of.local
    local = read_variable(name, 0) if is_set(name) else None
    if size > 1:
        read_local_size(size)
        master_address(rank)
    return Place(rank, size, local)


def find_launcher() -> Launcher | None:
    """Return the launcher, other than torchrun, that started this process as one of several; None if there is none."""
    for launcher in LAUNCHERS:
        if not is_set(launcher.size) or read_variable(launcher.size, 1) == 1:
            continue
        if launcher.name == "srun" and (is_set("SLURM_PTY_PORT") or read_step() >= INTERACTIVE_STEP):
            continue
        return launcher
    return None


def refuse_missing_torchrun() -> None:
    """Raise ConfigError if Kubernetes set the variables of torchrun (PET_NNODES), but torchrun did not start this process."""
    nodes = os.environ["PET_NNODES"] if is_set("PET_NNODES") else "1"
    if nodes.rpartition(":")[2] != "1":
        raise ConfigError(
            f"The environment variable PET_NNODES is {nodes!r}, which only torchrun reads: start the container with "
            "`torchrun -m fledge.cli train ...`; to train with one process, unset PET_NNODES."
        )


def master_address(rank: int) -> tuple[str, int]:
    """Return the host and port at which rank 0 meets the others: MASTER_ADDR and MASTER_PORT, or under Slurm a default.

    The default is the first host of the step, and a port that depends on the job and the step.
    """
    host, slurm = os.environ.get("MASTER_ADDR", "").strip(), is_set("SLURM_STEP_NODELIST") and find_launcher()
    if not host and slurm:
        host = first_host(os.environ["SLURM_STEP_NODELIST"])
    if not host:
        raise ConfigError(variable_error("MASTER_ADDR", "but must name the host of rank 0"))
    if not is_set("MASTER_PORT") and slurm and is_set("SLURM_JOB_ID"):
        return host, PORTS[(7 * read_variable("SLURM_JOB_ID", 0) + read_step()) % len(PORTS)]
    return host, read_variable("MASTER_PORT", 1, 65535)


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's list: node03 of node[03-05,9],gpu1."""
    found = re.match(r"(?:[^,\[\]]|\[\d[^\[\]]*\])+(?=,|$)", nodes)
    if not found:
        raise ConfigError(
            f"SLURM_STEP_NODELIST is {nodes!r}, which is not a list of hosts: set MASTER_ADDR to rank 0's host."
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found[0])


def is_set(name: str) -> bool:
    """Return whether an environment variable is set and not empty."""
    return bool(os.environ.get(name, "").strip())


def read_step() -> int:
    """Return the id of the Slurm step; 0 if it is not set."""
    return read_variable("SLURM_STEP_ID", 0, LAST_STEP) if is_set("SLURM_STEP_ID") else 0


def read_local_size(size: int) -> int | None:
    """Return LOCAL_WORLD_SIZE, the number of ranks on this host among `size`; None if it is not set."""
    return read_variable("LOCAL_WORLD_SIZE", 1, size) if is_set("LOCAL_WORLD_SIZE") else None


def read_variable(name: str, least: int, most: int | None = None) -> int:
    """Return the whole number in an environment variable; raise ConfigError if it is missing or out of range."""
    text = os.environ.get(name, "").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if number < least or (most is not None and number > most):
        limits = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
        raise ConfigError(variable_error(name, f"but must be {least if least == most else limits}"))
    return number


def variable_error(name: str, needs: str) -> str:
    """Return the error message for a missing or invalid variable of a launcher; `needs` says what it must be."""
    got = f"is {os.environ[name]!r}" if name in os.environ else "is not set"
    return (
        f"The environment variable {name} {got}, {needs}. Start several ranks with torchrun, which sets RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT; to train with one process, unset all of them."
    )
