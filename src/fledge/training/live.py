"""Frame capture: record a few envs of rank 0 while a training runs, for `fledge watch`.

A viewer touches RUN/live/watch (`request_frames`) while a page is open. While that file is recent, the training records a few
envs on one map into RUN/live/NUMBER.frec, on the recording's own thread; the last two files are kept. Recording does not
change the results of the training.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from fledge.core.errors import FledgeError
from fledge.envs.base import Action, TensorEnv
from fledge.envs.wrapper import EnvWrapper
from fledge.storage import RecordingWriter
from fledge.tasks.base import Task

logger = logging.getLogger("fledge.train")
FOLDER, SIGN, ENDING = "live", "watch", ".frec"
CHECK_S = 1.0  # between two checks for a viewer
FRESH_S = 12.0  # how long a request is valid; long enough for a page on a busy machine to repeat it
FLUSH_S = 0.6  # between two writes of frames
FOLLOWED = 4  # envs at once
FRAMES_S = 15.0  # frames per second of each, about: a fast training shows every second or third decision
MAX_BYTES = 32 * 2**20  # of one file
MAX_EPISODES = 400  # in one file: what a page lists stays short
KEPT = 2  # files


# ---- for viewers -------------------------------------------------------------------------------------------------------


def request_frames(run: Path) -> None:
    """Ask the training in a run's folder to record for the next FRESH_S seconds; never write through a symbolic link."""
    sign = run / FOLDER / SIGN
    with contextlib.suppress(OSError):  # a run that we may only read is shown without frames
        sign.parent.mkdir(exist_ok=True)
        if not sign.parent.is_symlink() and not sign.is_symlink():
            sign.touch()


def newest_capture(run: Path) -> Path | None:
    """Return the live recording that a training is writing or wrote last; None if there is none."""
    return next(reversed(capture_files(run / FOLDER)), None)


def capture_files(folder: Path) -> list[Path]:
    """Return the live recordings in a folder, sorted by number, without symbolic links, which may lead anywhere."""
    if folder.is_symlink():
        return []
    return sorted(path for path in folder.glob(f"*{ENDING}") if path.stem.isdigit() and not path.is_symlink())


# ---- in the training ---------------------------------------------------------------------------------------------------


class RecordingWrapper(EnvWrapper):
    """An env that passes every step to a `FrameCapture`."""

    def __init__(self, env: TensorEnv, capture: FrameCapture) -> None:
        super().__init__(env)
        self.capture = capture

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = self.env.step(action, dt, out=out)
        self.capture.after_step(result)
        return result

    def close(self) -> None:
        self.capture.close()
        self.env.close()


class FrameCapture:
    """Records a few envs while a viewer asks for frames; `folder` is the run's folder, or None to record nothing."""

    def __init__(self, task: Task, env: TensorEnv, facts: Mapping[str, Any] | None = None) -> None:
        self.task, self.env, self.facts = task, env, dict(facts or {})
        self.folder: Path | None = None
        self._writer: RecordingWriter | None = None
        self._open: dict[int, int | None] = {}  # env -> episode of the file
        self._unwritten: list[dict[str, np.ndarray]] = []  # frames of all open episodes
        self._stage: int | None = None
        self._next_check = self._next_flush = 0.0
        self._steps, self._rate = 0, 0.0  # since the last check; per second
        self._stride, self._since = 1, 0  # steps from frame to frame; since the last one
        self._failed = False

    @property
    def on(self) -> bool:
        """Whether frames are being written."""
        return self._writer is not None

    def after_step(self, out: TensorDict) -> None:
        """Record a step if a viewer has asked for frames, which is checked once a second; no error stops the training."""
        now = time.monotonic()
        self._steps += 1
        try:
            if now >= self._next_check:
                if self._next_check:
                    self._rate = self._steps / max(now - self._next_check + CHECK_S, 1e-3)
                self._next_check, self._steps = now + CHECK_S, 0
                self._check_request()
            if self._writer is not None:
                self._capture(out, now)
        except Exception as error:  # must not stop a training
            self._failed = True
            self._unwritten.clear()
            logger.warning("This training cannot be watched live (%s: %s).", type(error).__name__, error)
            self.close()

    def close(self) -> None:
        """Finish the recording that is being written, if any."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(FledgeError, ValueError):
                self._write_frames(writer)
            with contextlib.suppress(FledgeError):
                writer.close()
        self._open.clear()
        self._stage = None

    def _check_request(self) -> None:
        if self.folder is None or self._failed:
            return
        try:
            fresh = time.time() - os.stat(self.folder / FOLDER / SIGN).st_mtime < FRESH_S
        except OSError:
            fresh = False
        if fresh and self._writer is None:
            self._open_file(self.folder / FOLDER)
        elif not fresh and self._writer is not None:
            self.close()

    def _open_file(self, folder: Path) -> None:
        now = self.task.view.snapshot(self.env.unwrapped, [0])
        if not now:
            self._failed = True  # the task has nothing to show
            return
        known = capture_files(folder)
        number = int(known[-1].stem) + 1 if known else 1
        self._stride = max(1, round(self._rate / FRAMES_S)) if CHECK_S else 1
        self._writer = RecordingWriter(
            folder / f"{number:06d}{ENDING}",
            self.task.reference,
            {name: value[0] for name, value in now.items()},
            self.env.decision_s * self._stride,
            facts={"live": True, **self.facts},
            max_bytes=MAX_BYTES,
            max_episodes=MAX_EPISODES,
            block_frames=64,
        )
        for old in known[: max(0, len(known) + 1 - KEPT)]:
            old.unlink(missing_ok=True)

    def _capture(self, out: TensorDict, now: float) -> None:
        """End finished episodes in the recording, begin new ones in their place, and add a frame to each."""
        writer = self._writer
        assert writer is not None
        if self._open:
            self._end_episodes(writer, out)
        if writer.stats()["full"]:
            self.close()  # the next check opens another file
            return
        self._since += 1
        if self._since < self._stride:
            return
        self._since = 0
        self._follow_more(writer)
        if not self._open:
            return
        shown = self.task.view.snapshot(self.env.unwrapped, list(self._open))
        self._unwritten.append({name: value.copy() for name, value in shown.items()})
        if now >= self._next_flush:
            self._next_flush = now + FLUSH_S
            self._write_frames(writer)
            writer.flush()

    def _write_frames(self, writer: RecordingWriter) -> None:
        """Pass all frames since the last call to the writer; the open episodes must not have changed since then."""
        frames, self._unwritten = self._unwritten, []
        if not frames:
            return
        together = {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}  # [T, followed, ...]
        for row, episode in enumerate(self._open.values()):
            writer.add_many(episode, {name: value[:, row] for name, value in together.items()})

    def _end_episodes(self, writer: RecordingWriter, out: TensorDict) -> None:
        ids = torch.tensor(list(self._open), device=out["outcome"].device)
        outcomes, returns = out["outcome"][ids].tolist(), out["episode_return"][ids].tolist()
        ended = (out["terminated"] | out["truncated"])[ids].tolist()
        if not any(ended):
            return
        self._write_frames(writer)
        for env, over, outcome, total in zip(list(self._open), ended, outcomes, returns, strict=True):
            if over:
                name = self.env.outcomes.get(int(outcome), str(outcome))
                writer.end(self._open.pop(env), name or "over", float(total))

    def _follow_more(self, writer: RecordingWriter) -> None:
        """Begin to record more envs, up to FOLLOWED, all on one stage (map); choose a new stage when no env is on it."""
        if len(self._open) >= FOLLOWED:
            return
        stages = self.task.view.stage_of(self.env.unwrapped).cpu()[:: self.env.group]
        if self._stage is None or not bool((stages == self._stage).any()):
            self._stage = int(torch.bincount(stages.long()).argmax())
        there = ((stages == self._stage).nonzero().flatten() * self.env.group).tolist()
        new = [env for env in there if env not in self._open][: FOLLOWED - len(self._open)]
        if not new:
            return
        self._write_frames(writer)
        for env, scene in zip(new, self.task.view.scene(self.env.unwrapped, new), strict=True):
            self._open[env] = writer.begin(scene, {"env": env})
