"""Watching a training while it runs: what a few envs of rank 0 do, as a recording that grows.

A watcher touches RUN/live/watch (`ask_for_frames`) for as long as somebody looks. The training looks at that file's time once
a second, and while it is fresh writes what happens in a few envs that share a stage into RUN/live/NUMBER.frec, on the
recording's own thread. Files are bounded: a full one gives way to the next, and all but the last two are removed. Without a
watcher nothing is built, and nothing that is computed depends on being watched.
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
LOOK_S = 1.0  # between two looks for a watcher
FRESH_S = 12.0  # for which a watcher's sign counts: also of a page on a busy machine
FLUSH_S = 0.6  # between two handings-over of frames
FOLLOWED = 4  # envs at once
FRAMES_S = 15.0  # about so many frames a second are taken of each: a fast training shows every second or third decision
MAX_BYTES = 32 * 2**20  # of one file
MAX_EPISODES = 400  # in one file: what a page lists stays short
KEPT = 2  # files


# ---- the watcher's side ------------------------------------------------------------------------------------------------


def ask_for_frames(run: Path) -> None:
    """Tell the training in a run's folder that somebody watches, for the next seconds; never through a link."""
    sign = run / FOLDER / SIGN
    with contextlib.suppress(OSError):  # a run that we may only read is shown without frames
        sign.parent.mkdir(exist_ok=True)
        if not sign.parent.is_symlink() and not sign.is_symlink():
            sign.touch()


def newest_footage(run: Path) -> Path | None:
    """The recording that a training is writing, or has written last."""
    found = footage(run / FOLDER)
    return found[-1] if found else None


def footage(folder: Path) -> list[Path]:
    """Recordings by number; links, which may lead anywhere, are none."""
    if folder.is_symlink():
        return []
    return sorted(path for path in folder.glob(f"*{ENDING}") if path.stem.isdigit() and not path.is_symlink())


# ---- the training's side -----------------------------------------------------------------------------------------------


class RecordingWrapper(EnvWrapper):
    """An env whose camera may record after every step."""

    def __init__(self, env: TensorEnv, camera: Camera) -> None:
        super().__init__(env)
        self.camera = camera

    def step(self, action: Action, dt: float | None = None, out: TensorDict | None = None) -> TensorDict:
        result = self.env.step(action, dt, out=out)
        self.camera.after_step(result)
        return result

    def close(self) -> None:
        self.camera.close()
        self.env.close()


class Camera:
    """Records a few envs of a training while somebody watches. `folder` is the run's; None: nobody can."""

    def __init__(self, task: Task, env: TensorEnv, facts: Mapping[str, Any] | None = None) -> None:
        self.task, self.env, self.facts = task, env, dict(facts or {})
        self.folder: Path | None = None
        self._writer: RecordingWriter | None = None
        self._open: dict[int, int | None] = {}  # env -> episode of the file
        self._seen_since: list[dict[str, np.ndarray]] = []  # frames that the writer has not got, of all that are open
        self._stage: int | None = None
        self._next_look = self._next_flush = 0.0
        self._steps, self._rate = 0, 0.0  # since the last look; per second
        self._stride, self._since = 1, 0  # steps from frame to frame; since the last one
        self._failed = False

    @property
    def on(self) -> bool:
        """Whether frames are being written."""
        return self._writer is not None

    def after_step(self, out: TensorDict) -> None:
        """What one step led to. Costs a comparison unless somebody watches, and a look at a file once a second."""
        now = time.monotonic()
        self._steps += 1
        if now >= self._next_look:
            if self._next_look:
                self._rate = self._steps / max(now - self._next_look + LOOK_S, 1e-3)
            self._next_look, self._steps = now + LOOK_S, 0
            self._look()
        if self._writer is not None:
            try:
                self._film(out, now)
            except (FledgeError, OSError, RuntimeError, ValueError, KeyError, AssertionError) as error:
                self._fail(error)

    def close(self) -> None:
        """Finish the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(FledgeError, ValueError):
                self._hand_over(writer)
        self._open.clear()
        self._stage = None
        if writer is not None:
            with contextlib.suppress(FledgeError):
                writer.close()

    def _look(self) -> None:
        if self.folder is None or self._failed:
            return
        try:
            fresh = time.time() - os.stat(self.folder / FOLDER / SIGN).st_mtime < FRESH_S
        except OSError:
            fresh = False
        if fresh and self._writer is None:
            try:
                self._begin()
            except (FledgeError, OSError, RuntimeError, ValueError, KeyError, AssertionError) as error:
                self._fail(error)
        elif not fresh and self._writer is not None:
            self.close()

    def _fail(self, error: Exception) -> None:
        """A camera that breaks must not stop a training."""
        self._failed = True
        self._seen_since.clear()
        logger.warning("This training cannot be watched live (%s: %s).", type(error).__name__, error)
        self.close()

    def _begin(self) -> None:
        assert self.folder is not None
        now = self._seen([0])
        if not now:
            self._failed = True  # the world shows nothing
            return
        folder = self.folder / FOLDER
        known = footage(folder)
        number = int(known[-1].stem) + 1 if known else 1
        self._stride = max(1, round(self._rate / FRAMES_S)) if LOOK_S else 1
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

    def _seen(self, ids: list[int]) -> dict[str, np.ndarray]:
        return self.task.snapshot(self.env.unwrapped, ids)

    def _film(self, out: TensorDict, now: float) -> None:
        """End what ended, begin what is missing, and add a frame of each."""
        writer = self._writer
        assert writer is not None
        if self._open:
            self._end_over(writer, out)
        if writer.stats()["full"]:
            self.close()  # the next look begins another file
            return
        self._since += 1
        if self._since < self._stride:
            return
        self._since = 0
        self._fill_up(writer)
        if not self._open:
            return
        seen = self._seen(list(self._open))
        self._seen_since.append({name: value.copy() for name, value in seen.items()})
        if now >= self._next_flush:
            self._next_flush = now + FLUSH_S
            self._hand_over(writer)
            writer.flush()

    def _hand_over(self, writer: RecordingWriter) -> None:
        """Give the writer what was seen since the last time, of the envs that are followed: they were the same all along."""
        frames, self._seen_since = self._seen_since, []
        if not frames:
            return
        together = {name: np.stack([seen[name] for seen in frames]) for name in frames[0]}  # [T, followed, ...]
        for row, episode in enumerate(self._open.values()):
            writer.add_many(episode, {name: value[:, row] for name, value in together.items()})

    def _end_over(self, writer: RecordingWriter, out: TensorDict) -> None:
        ids = torch.tensor(list(self._open), device=out["outcome"].device)
        how, total = out["outcome"][ids].tolist(), out["episode_return"][ids].tolist()
        ended = (out["terminated"] | out["truncated"])[ids].tolist()
        if not any(ended):
            return
        self._hand_over(writer)
        for env, over, outcome, reward in zip(list(self._open), ended, how, total, strict=True):
            if over:
                name = self.env.outcomes.get(int(outcome), str(outcome))
                writer.end(self._open.pop(env), name or "over", float(reward))

    def _fill_up(self, writer: RecordingWriter) -> None:
        """Follow as many envs as may be, all on one stage; with nobody left on it, on another."""
        if len(self._open) >= FOLLOWED:
            return
        stages = self.task.stage_of(self.env.unwrapped).cpu()[:: self.env.group]
        if self._stage is None or not bool((stages == self._stage).any()):
            self._stage = int(torch.bincount(stages.long()).argmax())
        there = ((stages == self._stage).nonzero().flatten() * self.env.group).tolist()
        new = [env for env in there if env not in self._open][: FOLLOWED - len(self._open)]
        if not new:
            return
        self._hand_over(writer)
        for env, scene in zip(new, self.task.scene(self.env.unwrapped, new), strict=True):
            self._open[env] = writer.begin(scene, {"env": env})
