"""CheckpointHistory: a folder of checkpoints that stays small and always has one to resume from.

`save` passes a state to the saver. Once the checkpoint is durable, its name is written into the file `latest`, and older
checkpoints are reduced to weights or removed (see `retention`). `load_latest` returns the newest one that is not damaged; a
damaged file stops neither a save nor the clean-up of others. Only files named PREFIX_DIGITS.fledge belong to a history; all
others in the folder are left alone. Several processes may save into one folder: files appear by rename, and clean-up holds the
folder's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
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
from fledge.storage.history import retention
from fledge.storage.history.retention import WEIGHTS_ONLY, HistoryEntry, Policy, bases_of, best_names, is_note, plan
from fledge.storage.history.rewriting import rewrite_weights_only, rewrite_whole
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.saver import AsyncCheckpointSaver

logger = logging.getLogger("fledge.storage")
LATEST = "latest"
Delta = Literal["none", "weights_only", "all"]
Complete = Callable[[Node, Sequence[Leaf]], tuple[Node, Sequence[Leaf]]]


def latest_name(prefix: str) -> str:
    """Return the name of the file that points to a history's newest checkpoint."""
    return LATEST if prefix == "checkpoint" else f"{LATEST}_{prefix}"


class CheckpointHistory:
    """A folder of checkpoints with a retention policy.

    Example:
        >>> history = CheckpointHistory("run/checkpoints", saver=saver, keep_whole=3, keep_best=2)
        >>> history.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=100, metric=0.8)
        >>> state, info = history.load_latest()

    Args:
        folder: Folder of the checkpoints; created if missing.
        saver: Saver that writes in the background; with None, `save` returns when the file is durable.
        keep_whole: Number of newest checkpoints that keep everything, at least 1; use 2 or more to survive a damaged file.
        keep_best: Number of checkpoints with the best metric, whose weights are never removed and never rounded. Beyond the
            newest `keep_whole` they keep weights only: they can be evaluated and exported, but not resumed from.
        keep_weights_only: Number of older checkpoints whose weights are kept; None keeps all.
        weights: Top-level keys that a weights-only checkpoint keeps, besides plain values.
        weights_only_dtype: "bfloat16" rounds the weights of weights-only checkpoints; None keeps all bits.
        delta: Which checkpoints to store as deltas, small but unreadable without their base: "none", "weights_only" or "all".
        max_chain: Maximum length of a chain of deltas, each of which is a difference to the one before.
        higher_is_better: True if a larger metric is better.
        compression_level: 0 to 9; None takes the saver's.
        prefix: Prefix of the file names; histories in the same folder need different prefixes.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        saver: AsyncCheckpointSaver | None = None,
        *,
        keep_whole: int = 3,
        keep_best: int = 0,
        keep_weights_only: int | None = None,
        weights: Sequence[str] = ("model",),
        weights_only_dtype: Literal["bfloat16"] | None = None,
        delta: Delta | Literal["thin"] = "none",
        max_chain: int = 4,
        higher_is_better: bool = True,
        compression_level: int | None = None,
        prefix: str = "checkpoint",
    ) -> None:
        for name, number, least in (
            ("keep_whole", keep_whole, 1), ("keep_best", keep_best, 0), ("keep_weights_only", keep_weights_only or 0, 0)
        ):  # fmt: skip
            if number < least:
                raise ConfigError(f"{name} is {number}, but must be at least {least}.")
        self.delta: Delta = "weights_only" if delta == "thin" else delta  # "thin" in configs of older runs
        if self.delta not in ("none", "weights_only", "all"):
            raise ConfigError(f"delta is {delta!r}, but must be one of none, weights_only, all.")
        if weights_only_dtype not in (None, "bfloat16"):
            raise ConfigError(f"weights_only_dtype is {weights_only_dtype!r}, but must be None or bfloat16.")
        if not 1 <= max_chain <= MAX_CHAIN:
            raise ConfigError(f"max_chain is {max_chain}, but must lie between 1 and {MAX_CHAIN}.")
        if not prefix or Path(prefix).name != prefix or prefix.startswith("."):
            raise ConfigError(f"prefix is {prefix!r}, but must be the start of a file name, such as 'checkpoint'.")
        if saver is not None and saver.codec != "native":
            logger.warning("the saver's codec %r is ignored: a history writes native (.fledge) files", saver.codec)
        self.folder, self.saver = Path(os.path.abspath(folder)), saver  # independent of later changes of directory
        self.policy = Policy(keep_whole, keep_best, keep_weights_only, higher_is_better)
        self.weights, self.weights_only_dtype, self.max_chain = tuple(weights), weights_only_dtype, max_chain
        self.prefix, self._names = prefix, re.compile(rf"{re.escape(prefix)}_\d+{re.escape(NATIVE)}")
        self._latest = self.folder / latest_name(prefix)
        self.level = compression_level if compression_level is not None or saver is None else saver.compression_level
        self._cache: dict[str, tuple[tuple[int, int, int], HistoryEntry]] = {}
        remove_stale(self.folder)

    def save(
        self,
        state: dict[str, Any],
        step: int,
        metric: float | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        complete: Complete | None = None,
    ) -> CheckpointHandle:
        """Save a state as the newest checkpoint; once it is durable, write its file name into the file `latest`.

        Args:
            state: Nested dicts of tensors and plain values, with at least one of the keys in `self.weights` at the top level.
            step: Training step; the file is named after it, and replaces an earlier file of the same step.
            metric: Value that `keep_best` ranks by.
            metadata: Plain values to store with the state.
            complete: Function that adds the states of other ranks. It is called in the background with the tree and the
                leaves of this state, and returns the tree and the leaves to write.
        """
        if not isinstance(state, dict) or not any(key in state for key in self.weights):
            got = f"has {list(state)}" if isinstance(state, dict) else f"is a {type(state).__name__}"
            needs = f"needs one of weights={list(self.weights)}"
            raise InputError(f"the state {got}, but {needs}: add it, or set weights to keys of the state.")
        note = retention.new_note(step, metric)
        path = self.folder / numbered_name(self.prefix, note["step"])
        write = functools.partial(self._write, path, note, plain_copy(metadata or {}), complete)
        if self.saver is not None:
            return self.saver.submit(state, path, write)
        write(*stage_now(state), Plans())
        handle = CheckpointHandle(path)
        handle.finish("durable")
        return handle

    def _write(
        self,
        path: Path,
        note: dict[str, Any],
        extra: dict[str, Any],
        complete: Complete | None,
        node: Node,
        leaves: Sequence[Leaf],
        plans: Plans,
    ) -> Written:
        """Write the file, update `latest`, then reduce or remove old files; runs in the background."""
        if complete is not None:
            node, leaves = complete(node, leaves)
        try:
            make_folder(self.folder)
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be created ({error.strerror}): choose another folder.") from error
        entries = self.entries()
        note = {**note, "sequence": 1 + max((entry.sequence for entry in entries), default=0)}
        meta = {"history": note, "user": extra}
        locked, base = self.delta == "all" or any(entry.base == path.name for entry in entries), None
        with folder_lock(self.folder) if locked else contextlib.nullcontext():  # no other process may change the base
            if locked:
                self._free_dependents(path.name)
                base = self._base_for(False, {path.name}) if self.delta == "all" else None
            written = write_state(path, "native", node, leaves, level=self.level, metadata=meta, base=base, plans=plans)
        with folder_lock(self.folder):
            write_text(self._latest, json.dumps({"file": path.name, "step": note["step"]}) + "\n")
            self._prune()
        return written

    def _base_for(self, weights_only: bool, exclude: set[str]) -> Path | None:
        """Return the newest whole (or weights-only) file to use as a base, or None; skip `exclude` and files that need it."""
        entries = self.entries()
        for entry in reversed(entries):
            name = entry.path.name
            if entry.weights_only == weights_only and not exclude & {name, *bases_of({name}, entries)}:
                with contextlib.suppress(FledgeError), CheckpointFile(entry.path) as opened:
                    return entry.path if opened.depth < self.max_chain else None
        return None

    def _free_dependents(self, name: str) -> None:
        """Rewrite every file whose base is `name` so that it needs no base, because `name` is about to be replaced.

        Deltas to the rewritten files need no change: a delta refers to the content of its base, which stays the same.
        """
        for entry in self.entries():
            if entry.base == name:
                try:
                    rewrite_whole(entry.path, self.level)
                except FormatError as error:  # it was damaged before
                    logger.warning("%s cannot be read: %s", entry.path.name, error)

    def _prune(self) -> None:
        """Reduce old checkpoints to weights or remove them, as the settings say; the caller must hold the folder's lock.

        Deltas are reduced before their bases, and nothing is removed before all are reduced: wherever this stops, every
        remaining file can be read.
        """
        todo = plan(self.entries(), self.policy)
        removed = {entry.path.name for entry in todo.remove}
        for entry in todo.reduce:
            lossy = None if entry.path.name in todo.best else self.weights_only_dtype
            with_delta = self.delta != "none" and lossy is None
            base = self._base_for(True, {entry.path.name, *removed}) if with_delta else None
            try:
                rewrite_weights_only(entry.path, self.weights, lossy, base, self.level)
            except FormatError as error:  # damaged, so removing its base loses nothing
                logger.warning("%s was left unchanged: %s", entry.path.name, error)
            except (FledgeError, OSError) as error:
                logger.warning("older checkpoints were left unchanged: %s", error)
                break
        else:
            for entry in todo.remove:
                with contextlib.suppress(OSError):
                    entry.path.unlink(missing_ok=True)
        remove_stale(self.folder)

    def _files(self) -> list[Path]:
        """Return the files of this history, readable or not, sorted by name."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        return [self.folder / name for name in sorted(names) if self._names.fullmatch(name)]

    def entries(self) -> list[HistoryEntry]:
        """Return the checkpoints that can be opened, oldest first, without reading their tensors."""
        entries = []
        for path in self._files():
            with contextlib.suppress(FledgeError, OSError):  # truncated, or just removed by another process
                entries.append(self._describe(path))
        return sorted(entries, key=lambda entry: (entry.sequence, entry.step))

    def _describe(self, path: Path) -> HistoryEntry:
        status = path.stat()
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._cache.get(path.name)
        if known is not None and known[0] == state:
            return known[1]
        with CheckpointFile(path) as opened:
            note: Any = opened.metadata.get("history")
            user: Any = opened.metadata.get("user") or {}
            if not is_note(note) or not isinstance(user, dict):
                raise FormatError(f"{path} was not written by a CheckpointHistory: move it out of the folder.")
            entry = HistoryEntry(
                path, note["step"], note["metric"], note["sequence"], note[WEIGHTS_ONLY], status.st_size,
                opened.base_file, opened.id, user,
            )  # fmt: skip
        self._cache[path.name] = (state, entry)
        return entry

    def load_latest(
        self, device: torch.device | str = "cpu", keys: Sequence[str] | None = None, allow_weights_only: bool = False
    ) -> tuple[Any, HistoryEntry]:
        """Load the newest checkpoint that is not damaged; return its state, and an entry whose `skipped` lists unusable files.

        Args:
            device: Where tensors go.
            keys: Parts to load, such as "model".
            allow_weights_only: Also accept checkpoints reduced to weights.

        Raises:
            StorageError: No checkpoint can be loaded.
        """
        skipped = self.unreadable()
        for entry in reversed([entry for entry in self.entries() if allow_weights_only or not entry.weights_only]):
            try:
                state = self.load(entry, device, keys)
            except (FormatError, StorageError) as error:
                skipped.append((entry.path.name, str(error)))
                continue
            for name, reason in skipped:
                logger.warning("resume: %s cannot be used: %s", name, reason)
            return state, dataclasses.replace(entry, skipped=tuple(skipped))
        reasons = _listed(skipped[:3]) or "check the name."
        raise StorageError(f"{self.folder} has no checkpoint to resume from: {reasons}")

    def load(self, entry: HistoryEntry, device: torch.device | str = "cpu", keys: Sequence[str] | None = None) -> Any:
        """Load and verify one checkpoint of `entries()`."""
        if not isinstance(entry, HistoryEntry):
            raise InputError(f"entry is {entry!r}: pass one of entries(). best() is None if no metric was saved.")
        with CheckpointFile(entry.path) as opened:
            return opened.state(device, keys)

    def unreadable(self) -> list[tuple[str, str]]:
        """Return the name of each file of this history that cannot be opened, and the reason."""
        known = {entry.path for entry in self.entries()}
        return [(path.name, _reason(path)) for path in self._files() if path not in known]

    @property
    def is_empty(self) -> bool:
        """True if the folder has no file of this history, not even a damaged one."""
        return not self._files()

    def latest(self) -> HistoryEntry | None:
        """Return the entry of the newest checkpoint that is not reduced to weights; None if there is none yet.

        Raises:
            StorageError: There are files, but none can be opened; starting again would overwrite them.
        """
        entries = self.entries()
        if not entries and (bad := self.unreadable()):
            where = f"None of the {len(bad)} checkpoints in {self.folder} can be read"
            raise StorageError(f"{where}: {_listed(bad[-3:])} Move them away to start again.")
        return next((entry for entry in reversed(entries) if not entry.weights_only), None)

    def best(self) -> HistoryEntry | None:
        """Return the checkpoint with the best metric; None if no checkpoint has a metric."""
        entries = self.entries()
        names = best_names(entries, dataclasses.replace(self.policy, keep_best=1))
        return next((entry for entry in entries if entry.path.name in names), None)


def _listed(files: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{name}: {reason}" for name, reason in files)


def _reason(path: Path) -> str:
    try:
        CheckpointFile(path).close()
    except (FledgeError, OSError) as error:
        return str(error)
    return "it is not a checkpoint of this history."
