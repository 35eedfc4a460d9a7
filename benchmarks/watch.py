"""`python -m benchmarks watch`: the cost of watching a training run in the browser, in turns on one run that continues.

bare         the env alone, without frame capture
unwatched    with frame capture, but no viewer that requests frames
watched      with `fledge watch` beside it on the same cores, and a client that requests all new frames as the page does
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.served import Served
from benchmarks.turns import ratio, spread
from fledge.core.machine import machine_info
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.live import FOLDER, SIGN
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

VARIANTS = ("bare", "unwatched", "watched")
POLL_S = 0.7  # as the page does


class Viewer:
    """`fledge watch` in a process of its own, and a thread that requests frames as the page does while `on`."""

    def __init__(self, folder: Path) -> None:
        self.server = Served("watch", str(folder))
        self.base, self.on, self.frames, self.answers = self.server.base, False, 0, 0
        self.ended = False
        page = urllib.request.urlopen(f"{self.base}/watch").read().decode()
        known = re.search(r"/watch/([0-9a-f]{12})", page)
        assert known is not None, "the page does not list the run"
        self.entry = known[1]
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _ask(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.base}/recordings/{self.entry}{path}", timeout=30) as answer:
            data: bytes = answer.read()
            return data

    def _look(self) -> None:
        known: dict[tuple[str, int], int] = {}
        while not self.ended:
            time.sleep(POLL_S)
            if not self.on:
                continue
            try:
                told = json.loads(self._ask(""))
                for row in told["episodes"][-16:]:
                    key = (told["generation"], row["number"])
                    if row["recorded"] > known.get(key, 0):
                        self._ask(f"/{row['number']}?stage=0&start={known.get(key, 0)}")
                        self.frames += row["recorded"] - known.get(key, 0)
                        known[key] = row["recorded"]
                self.answers += 1
            except OSError:
                continue

    def close(self) -> None:
        self.ended = True
        self.server.close()


def run(
    on_progress: Callable[[str], None],
    turns: int = 5,
    iterations: int = 3,
    num_envs: int = 1024,
    task: str = "navigation",
) -> dict[str, Any]:
    """Return the figures of all variants; JSON-able.

    Args:
        turns: Turns per variant.
        iterations: Iterations per turn, timed together.
    """
    world = find_task(task)
    overrides = [f"env.num_envs={num_envs}", "total_frames=1000000000000", "tensorboard=false"]
    training = TrainingState(make_config(world, None, overrides), Ranks(), world)
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    cpu: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        OmegaConf.save(OmegaConf.structured(training.cfg), folder / "config.yaml")
        viewer = Viewer(Path(place))
        try:
            for turn, variant in order(turns):
                on_progress(f"turn {turn + 1} of {turns}: {variant}")
                prepare(training, folder, viewer, variant)
                begun, used = time.perf_counter(), time.process_time()
                for _ in range(iterations):
                    training.learn(training.collect())
                seconds[variant].append((time.perf_counter() - begun) / iterations)
                cpu[variant].append((time.process_time() - used) / iterations)
        finally:
            viewer.close()
            training.close()
    rates = {variant: [training.frames_per_iteration / s for s in times] for variant, times in seconds.items()}
    return {
        "machine": machine_info(),
        "task": task,
        "num_envs": num_envs,
        "decisions_per_second": {variant: spread(values, 0) for variant, values in rates.items()},
        "time_against_bare": {variant: ratio(seconds[variant], seconds["bare"]) for variant in VARIANTS[1:]},
        "cpu_against_bare": {variant: ratio(cpu[variant], cpu["bare"]) for variant in VARIANTS[1:]},
        "frames_shown": viewer.frames,
        "answers": viewer.answers,
    }


def order(turns: int) -> Iterator[tuple[int, str]]:
    """Yield the turns of all variants; each round begins with another one."""
    for turn in range(turns):
        for k in range(len(VARIANTS)):
            yield turn, VARIANTS[(turn + k) % len(VARIANTS)]


def prepare(training: TrainingState, folder: Path, viewer: Viewer, variant: str) -> None:
    """Set up a variant, and make one iteration that is not timed."""
    env, camera = training.recorder, training.recorder.capture
    vars(env).pop("step", None)
    camera.folder, viewer.on = folder, variant == "watched"
    if variant == "watched":
        end = time.monotonic() + 60
        while not camera.on and time.monotonic() < end:
            training.learn(training.collect())
        assert camera.on, "the watcher was not heard"
    else:
        (folder / FOLDER / SIGN).unlink(missing_ok=True)
        camera.close()
        if variant == "bare":
            vars(env)["step"] = env.env.step
    training.learn(training.collect())


def render(result: dict[str, Any]) -> Iterator[str]:
    """Yield the figures as lines of text."""
    yield f"{result['task']}, {result['num_envs']} envs; {result['frames_shown']:,} frames shown"
    yield "against bare, turn by turn: median (quartiles); processor time is the training's own, of all its threads"
    yield f"{'variant':<9} {'decisions/s':>12}  {'time':>24}  {'processor time':>24}"
    for variant in VARIANTS:
        told = [result[name].get(variant) for name in ("time_against_bare", "cpu_against_bare")]
        more = [f"{each['median']:.3f} ({each['low']:.3f} to {each['high']:.3f})" if each else "1" for each in told]
        yield f"{variant:<9} {result['decisions_per_second'][variant]['median']:>12,.0f}  {more[0]:>24}  {more[1]:>24}"
