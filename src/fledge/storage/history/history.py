"""CheckpointHistory: a folder of checkpoints that stays small and always has one to resume from.

Contract
    `save` hands a state to the saver; once its file is durable, and only then, `latest` names it and older files are
    thinned or removed (see `retention`). The newest `keep_whole` stay whole; older ones keep their weights; the best by
    metric are never removed.
    `load_latest` gives the newest checkpoint that verifies, going back file by file past torn or altered ones. No damaged
    file stops a save, nor the tidying of others.
    A history's files are PREFIX_DIGITS.fledge, exactly: others in the folder, another history's too, are left alone.
    Several processes may save into one folder: files appear by rename, and rearranging is done under the folder's lock.
    What a killed process leaves behind is cleaned up by the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fledge.core.errors import ConfigError, FledgeError, FormatError, InputError, StorageError
from fledge.storage.checkpoint import NATIVE, numbered_name, stage_now, write_state
from fledge.storage.disk.durable import folder_lock, make_folder, remove_stale, write_text
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.tree import Node
from fledge.storage.format.writer import MAX_CHAIN, Plans, Written, plain_copy
from fledge.storage.history.retention import HistoryEntry, Policy, bases_of, best_names, plan
from fledge.storage.history.thinning import rewrite_whole, write_thin
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.saver import AsyncCheckpointSaver

logger = logging.getLogger("fledge.storage")
LATEST = "latest"


class CheckpointHistory:
    """A folder of checkpoints under a keeping policy.

    Example:
        >>> history = CheckpointHistory("run/checkpoints", saver=saver, keep_whole=3, keep_best=2)
        >>> history.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=100, metric=0.8)
        >>> state, info = history.load_latest()

    Args:
        folder: Where; made if missing.
        saver: Saves in the background; None saves before `save` returns.
        keep_whole: Newest checkpoints that keep everything, at least 1. 2 or more leave something to fall back to.
        keep_best: Checkpoints with the best metric, whose weights are never removed and never rounded.
        keep_thin: Older checkpoints whose weights are kept; None keeps all.
        weights: Top-level keys that a thinned checkpoint keeps, besides plain values.
        thin_dtype: "bfloat16" rounds the weights of thinned checkpoints (declared in the file); None keeps all bits.
        delta: Store differences: "thin" among thinned checkpoints, "all" also for whole ones, "none" never. A delta is
            smaller, but is lost with its base.
        max_chain: Longest chain of deltas.
        higher_is_better: Whether a larger metric is better.
        compression_level: 0 to 9; None takes the saver's.
        prefix: Beginning of the files' names; two histories in one folder need two.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        saver: AsyncCheckpointSaver | None = None,
        *,
        keep_whole: int = 3,
        keep_best: int = 0,
        keep_thin: int | None = None,
        weights: Sequence[str] = ("model",),
        thin_dtype: Literal["bfloat16"] | None = None,
        delta: Literal["none", "thin", "all"] = "none",
        max_chain: int = 4,
        higher_is_better: bool = True,
        compression_level: int | None = None,
        prefix: str = "checkpoint",
    ) -> None:
        if keep_whole < 1 or keep_best < 0 or (keep_thin is not None and keep_thin < 0):
            raise ConfigError(
                f"keep_whole, keep_best and keep_thin are {keep_whole}, {keep_best} and {keep_thin}, but must be at least "
                "1, 0 and 0 (or None)."
            )
        if delta not in ("none", "thin", "all") or thin_dtype not in (None, "bfloat16"):
            raise ConfigError(
                f"delta is {delta!r} and thin_dtype {thin_dtype!r}, but must be one of none, thin, all and one of "
                "None, bfloat16."
            )
        if not 1 <= max_chain <= MAX_CHAIN:
            raise ConfigError(f"max_chain is {max_chain}, but must lie between 1 and {MAX_CHAIN}.")
        if not prefix or Path(prefix).name != prefix or prefix.startswith("."):
            raise ConfigError(
                f"prefix is {prefix!r}, but must be the beginning of a file's name, such as 'checkpoint'."
            )
        self.folder, self.saver = Path(os.path.abspath(folder)), saver  # where it was when this was made
        self.policy = Policy(keep_whole, keep_best, keep_thin, higher_is_better)
        self.weights, self.thin_dtype, self.delta, self.max_chain = tuple(weights), thin_dtype, delta, max_chain
        self.prefix, self._names = prefix, re.compile(rf"{re.escape(prefix)}_\d+{re.escape(NATIVE)}")
        self._latest = self.folder / (LATEST if prefix == "checkpoint" else f"{LATEST}_{prefix}")
        self.level = compression_level if compression_level is not None or saver is None else saver.compression_level
        self._cache: dict[str, tuple[tuple[int, int, int], HistoryEntry]] = {}
        remove_stale(self.folder)

    def save(
        self, state: dict[str, Any], step: int, metric: float | None = None, metadata: dict[str, Any] | None = None
    ) -> CheckpointHandle:
        """Save a state as the newest checkpoint; durable, and `latest` moved, when the handle says so.

        Args:
            state: Nested state with the keys named by `weights` at its top.
            step: Training step; the file is named after it, and replaces one of the same step.
            metric: What `keep_best` ranks by.
            metadata: Plain values kept with it.
        """
        if not isinstance(state, dict) or not any(key in state for key in self.weights):
            keys = list(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(
                f"the state has {keys}, none of the weights {list(self.weights)}: set weights= to its key."
            )
        if not hasattr(step, "__index__") or int(step) < 0:
            raise InputError(f"step is {step!r}, but must be a whole number of at least 0.")
        path = self.folder / numbered_name(self.prefix, step)
        note = {"step": int(step), "metric": None if metric is None else float(metric), "thin": False}
        extra = plain_copy(metadata or {})

        def write(node: Node, leaves: Sequence[Leaf], plans: Plans) -> Written:
            return self._write(path, note, extra, node, leaves, plans)

        if self.saver is not None:
            return self.saver.submit(state, path, write)
        write(*stage_now(state), Plans())
        handle = CheckpointHandle(path)
        handle.finish("durable")
        return handle

    def _write(
        self, path: Path, note: dict[str, Any], extra: dict[str, Any], node: Node, leaves: Sequence[Leaf], plans: Plans
    ) -> Written:
        """Runs in the background: write the file, then move `latest`, then tidy up."""
        self._make_folder()
        entries = self.entries()
        note = {**note, "sequence": 1 + max((entry.sequence for entry in entries), default=0)}
        metadata = {"history": note, "user": extra}
        if self.delta == "all" or any(entry.base == path.name for entry in entries):
            with folder_lock(self.folder):  # the base must not be thinned by another process until we are done
                self._free_dependents(path.name)
                base = self._base_for(False, {path.name}) if self.delta == "all" else None
                written = write_state(
                    path, "native", node, leaves, level=self.level, metadata=metadata, base=base, plans=plans
                )
        else:
            written = write_state(path, "native", node, leaves, level=self.level, metadata=metadata, plans=plans)
        with folder_lock(self.folder):
            write_text(self._latest, json.dumps({"file": path.name, "step": note["step"]}) + "\n")
            self._prune()
        return written

    def _make_folder(self) -> None:
        try:
            make_folder(self.folder)
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be made ({error.strerror}): choose another folder.") from error

    def _base_for(self, thin: bool, exclude: set[str]) -> Path | None:
        """Newest file that a new one may be a delta to; none that needs one of `exclude`."""
        entries = self.entries()
        for entry in reversed(entries):
            name = entry.path.name
            if entry.thin == thin and not exclude & {name, *bases_of({name}, entries)}:
                with contextlib.suppress(FledgeError), CheckpointFile(entry.path) as opened:
                    return entry.path if opened.depth < self.max_chain else None
        return None

    def _free_dependents(self, name: str) -> None:
        """Make files that are deltas to `name` stand alone, before it is replaced.

        Deltas to these stay as they are: a delta names the content of its base, and that does not change.
        """
        for entry in self.entries():
            if entry.base == name:
                try:
                    rewrite_whole(entry.path, self.level)
                except FormatError as error:  # it was lost before
                    logger.warning("%s cannot be read any more: %s", entry.path.name, error)

    def _prune(self) -> None:
        """Thin and remove what the policy says; needs the folder's lock.

        Deltas are thinned before their bases, and nothing is removed before all are thinned: wherever this stops, every
        file that is left can still be read.
        """
        todo = plan(self.entries(), self.policy)
        removed = {entry.path.name for entry in todo.remove}
        thinned = True
        for entry in todo.thin:
            lossy = None if entry.path.name in todo.best else self.thin_dtype
            with_delta = self.delta != "none" and lossy is None
            base = self._base_for(True, {entry.path.name, *removed}) if with_delta else None
            try:
                write_thin(entry.path, self.weights, lossy, base, self.level)
            except FormatError as error:  # damaged: it needs nothing of what is removed any more
                logger.warning("%s was left as it is: %s", entry.path.name, error)
            except (FledgeError, OSError) as error:
                logger.warning("older checkpoints were left as they are: %s", error)
                thinned = False
                break
        for entry in todo.remove if thinned else ():
            with contextlib.suppress(OSError):
                entry.path.unlink(missing_ok=True)
        remove_stale(self.folder)

    def _files(self) -> list[Path]:
        """Files of this history, readable or not, by name."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        return [self.folder / name for name in sorted(names) if self._names.fullmatch(name)]

    def entries(self) -> list[HistoryEntry]:
        """Checkpoints in the folder that can be opened, oldest first; their tensors are not read."""
        entries = []
        for path in self._files():
            try:
                entries.append(self._describe(path))
            except (FledgeError, OSError):
                continue  # torn, or just removed by another process
        return sorted(entries, key=lambda entry: (entry.sequence, entry.step))

    def _describe(self, path: Path) -> HistoryEntry:
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._cache.get(path.name)
        if known is not None and known[0] == state:
            return known[1]
        with CheckpointFile(path) as opened:
            note: Any = opened.metadata.get("history")
            if not _is_note(note):
                raise FormatError(f"{path} was not written by a CheckpointHistory: move it out of the folder.")
            user = opened.metadata.get("user") or {}
            entry = HistoryEntry(
                path, note["step"], note["metric"], note["sequence"], note["thin"], status.st_size, opened.base_file,
                opened.id, user,
            )  # fmt: skip
        self._cache[path.name] = (state, entry)
        return entry

    def load_latest(
        self, device: torch.device | str = "cpu", keys: Sequence[str] | None = None, allow_thin: bool = False
    ) -> tuple[Any, HistoryEntry]:
        """State and description of the newest checkpoint that verifies; `info.skipped` names those that did not.

        Args:
            device: Where tensors go.
            keys: Parts to load, such as "model".
            allow_thin: Accept one with weights only, when no whole one is left.

        Raises:
            StorageError: There is none.
        """
        skipped: list[tuple[str, str]] = []
        readable = self.entries()
        known = {entry.path.name for entry in readable}
        for path in self._files():
            if path.name not in known:
                skipped.append((path.name, _reason(path)))
        for entry in reversed([entry for entry in readable if allow_thin or not entry.thin]):
            try:
                state = self.load(entry, device, keys)
            except (FormatError, StorageError) as error:
                skipped.append((entry.path.name, str(error)))
                continue
            for name, reason in skipped:
                logger.warning("resume: %s cannot be used: %s", name, reason)
            return state, dataclasses.replace(entry, skipped=tuple(skipped))
        reasons = " ".join(f"{name}: {reason}" for name, reason in skipped[:3])
        raise StorageError(f"{self.folder} has no checkpoint to resume from: {reasons or 'check the name.'}")

    def load(self, entry: HistoryEntry, device: torch.device | str = "cpu", keys: Sequence[str] | None = None) -> Any:
        """State of one checkpoint of `entries()`, verified."""
        with CheckpointFile(entry.path) as opened:
            return opened.state(device, keys)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever saved here: a damaged file is not nothing."""
        return not self._files()

    def latest(self) -> HistoryEntry | None:
        """The newest whole checkpoint, by its description only; None where there is none yet.

        Raises:
            StorageError: There are files, but none can be opened: starting again would write over them.
        """
        entries = self.entries()
        if not entries and not self.is_empty:
            paths = self._files()
            reasons = " ".join(f"{path.name}: {_reason(path)}" for path in paths[-3:])
            raise StorageError(
                f"None of the {len(paths)} checkpoints in {self.folder} can be read: {reasons} Move them away to start again."
            )
        return next((entry for entry in reversed(entries) if not entry.thin), None)

    def best(self) -> HistoryEntry | None:
        """The checkpoint with the best metric."""
        entries = self.entries()
        names = best_names(entries, dataclasses.replace(self.policy, keep_best=1))
        return next((entry for entry in entries if entry.path.name in names), None)


def _is_note(note: Any) -> bool:
    """Whether a file's metadata has what `save` puts there."""
    if not isinstance(note, dict):
        return False
    numbers = all(type(note.get(key)) is int for key in ("step", "sequence"))
    return numbers and type(note.get("thin")) is bool and type(note.get("metric", "")) in (float, type(None))


def _reason(path: Path) -> str:
    try:
        CheckpointFile(path).close()
    except (FledgeError, OSError) as error:
        return str(error)
    return "it is no checkpoint of this history."
