"""The folder of a run: what it holds already, and how to continue it."""

from __future__ import annotations

import itertools
import logging
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fledge.core.code import is_reference
from fledge.core.errors import ConfigError, StorageError
from fledge.core.overrides import read_yaml, value_given
from fledge.storage import CheckpointHistory
from fledge.storage.remote.run_store import RunStore, is_url

logger = logging.getLogger("fledge.training")


def newest_saved(folder: Path | None) -> int:
    """Return the iteration of the newest checkpoint in a run's folder; 0 if it has none, -1 if there is no run."""
    if folder is None or not (folder / "config.yaml").exists():
        return -1
    names = [path.stem.rpartition("_")[2] for path in (folder / "checkpoints").glob("checkpoint_*.fledge")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def refuse_other_host(folder: Path, notes: Sequence[tuple[str, int]]) -> None:
    """Raise ConfigError if a run that is to be resumed is newer on another host than on rank 0's.

    Args:
        notes: Each rank's host, and what `newest_saved` returned there; empty if no launcher started the ranks.
    """
    host, newest = max(notes, key=lambda note: note[1], default=("", -1))
    own = newest_saved(folder)
    if newest <= own:
        return
    here = f"has it up to iteration {own}" if own >= 0 else "does not have it"
    raise ConfigError(
        f"{host} has the run {folder} up to iteration {newest}, but rank 0 is on {notes[0][0]}, which {here}: start rank 0 on "
        f"{host} (torchrun --node-rank 0), put the folder on a disk that all hosts share, or use checkpoint_url."
    )


def fetch_run(resume: bool | str, folder: Path | None, overrides: Sequence[str]) -> tuple[Path, list[str]]:
    """Download the run that is to be resumed if its store has a newer checkpoint than its folder.

    Args:
        resume: URL of the run; otherwise the run's `checkpoint_url` is used, if it has one.

    Returns:
        The run's folder, and the overrides, to which the URL is added.
    """
    given = value_given(overrides, "checkpoint_url", {})
    named = str(resume) if is_url(resume) else ""
    folder = folder or Path("runs", named.rstrip("/").rpartition("/")[2])
    saved = str(read_yaml(folder / "config.yaml").get("checkpoint_url", "")) if newest_saved(folder) >= 0 else ""
    if named and newest_saved(folder) >= 0 and saved.rstrip("/") != named.rstrip("/"):
        raise ConfigError(f"{folder} holds a run that was not saved to {named}: choose another folder with --folder.")
    url = named or (given if given is not None else saved)
    if url:
        here = newest_saved(folder)
        try:
            found = RunStore(url).download(folder, after=here)
        except StorageError as error:
            if here < 0:
                raise
            logger.warning("%s The run continues from %s.", error, folder)
            found = None
        if found is not None:
            print(f"downloaded iteration {found} of {url} to {folder}", file=sys.stderr)
        elif named and here < 0:
            raise ConfigError(f"{url} holds no run: check the address.")
    more = [f"checkpoint_url={named}"] if named and given is None else []
    return folder, [*overrides, *more]


def refuse_used_url(url: str) -> None:
    """Raise ConfigError if a store already holds a run at the URL of a new run; StorageError if it cannot be used."""
    store = RunStore(url)
    if found := store.newest():
        raise ConfigError(
            f"checkpoint_url={url} already holds a run, up to iteration {found.step}: continue it with "
            f"`fledge train --resume {shlex.quote(url)}`, or choose another URL."
        )
    store.check_writable()
    if url.rpartition("::")[2].startswith("memory://"):
        logger.warning("%s is in this process's memory: when the process ends, nothing of it is left.", url)


def refuse_old_run(folder: Path) -> None:
    """Raise ConfigError if a folder already holds a run, which a new run would replace."""
    if not (folder / "config.yaml").exists():
        return
    how = resume_call(folder)
    if has_saved(folder):
        raise ConfigError(f"{folder} already holds a run: continue it with {how}, or choose another folder.")
    raise ConfigError(
        f"{folder} already holds a run, which has no checkpoint yet. To start it again, with corrected settings if you like, "
        f"use {how}; or remove the folder."
    )


def new_folder() -> Path:
    """Return runs/<time>, with a number appended if that folder exists already."""
    name = time.strftime("%Y%m%d-%H%M%S")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / each for each in names) if not path.exists())


def has_saved(folder: Path) -> bool:
    """Return whether a run has a checkpoint to continue from."""
    return not CheckpointHistory(folder / "checkpoints").is_empty


def how_to_go_on(folder: Path) -> str:
    """Return a sentence on how to continue a stopped run; "" if nothing was saved."""
    return f"{resume_call(folder)} continues from its newest checkpoint." if has_saved(folder) else ""


def resume_call(folder: Path) -> str:
    """Return the command that continues a run, and its form in Python."""
    return f"`fledge train --resume {shlex.quote(str(folder))}` (in Python, folder={str(folder)!r}, resume=True)"


def check_folder(folder: Path) -> None:
    """Raise ConfigError if a run cannot be written to a folder; create nothing."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error


def moved_algorithm(run: Path, overrides: Sequence[str]) -> list[str]:
    """Return a list with the user's override `algo=...`, which says where the class of the run's algorithm is now.

    Return [] if the run was trained with one of Fledge's algorithms, or if there is no such override.

    Raises:
        ConfigError: The override names a class with which the run was not trained.
    """
    path = run / "config.yaml"
    saved = str(read_yaml(path).get("algo", "ppo")) if path.is_file() else "ppo"
    named = value_given(overrides, "algo", {})
    if named is None or not is_reference(saved):
        return []
    if named.rpartition(":")[2] != saved.rpartition(":")[2]:
        raise ConfigError(
            f"algo={named} is not the algorithm that {run} was trained with, algo={saved}: a resumed run keeps its "
            "algorithm, so pass the class of that name."
        )
    return [f"algo={named}"]
