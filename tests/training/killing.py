"""Kill small trainings at random moments, resume them, and compare them with a training that was never stopped.

Run: python -m tests.training.killing KIND KILLS SEED FOLDER, where KIND is league or sac.
Each attempt forks a process that starts or resumes the run, and kills it with SIGKILL after a random time: while it starts,
collects, learns, evaluates, saves, lets a past self join, records live frames or ends. A run that has ended is compared with
the straight one in every bit (all but times), and another one begins, until there were enough kills.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.core.errors import FledgeError
from fledge.storage import CheckpointHistory, Recording, RolloutStorage, load_checkpoint
from fledge.storage.disk.durable import TEMP_PREFIX
from fledge.tasks.registry import find_task
from fledge.training.api import train
from fledge.training.live import FOLDER, SIGN

ITERATIONS = 12
COMMON = {
    "ranks": 1, "threads": 1, "tensorboard": False, "save_interval": 1, "eval_interval": 3, "eval_episodes": 4,
    "rollout_save_interval": 4, "keep_checkpoints": 2, "policy.hidden": [8], "env.num_envs": 8,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "league": ("aircombat", {
        "total_frames": ITERATIONS * 8 * 32, "policy.tokens": 8, "env.spacetime": False, "env.scenario": "chase",
        "env.opponent": "placeholder", "env.max_episode_s": 30, "ppo.rollout_steps": 32, "ppo.minibatch": 128,
        "league.ladder": ["placeholder", "random"], "league.window": 4, "league.promote_at": 0.05,
        "league.self_beaten_at": 0.05, "league.past_selves": 2, "league.self_play": 0.3,
    }),
    "sac": ("navigation", {
        "algo": "sac", "total_frames": ITERATIONS * 8 * 8, "env.num_maps": 2, "env.static_obstacles": 20,
        "env.moving_obstacles": 4, "env.max_episode_steps": 40, "replay.steps": 8, "replay.segment": 16,
        "replay.warm_up": 100, "replay.batch": 32, "replay.updates": 2, "replay.size": 600,
    }),
}  # fmt: skip
TIMES = re.compile(r"seconds|.*_s|frames_per_second|perf/.*|checkpoint/.*|memory_mb")


def start(kind: str, folder: Path) -> int:
    """Fork a process that starts or resumes a run; return its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        errors = os.open(folder.parent / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 2)
        task, settings = KINDS[kind]
        if (folder / "config.yaml").exists():
            train(folder=folder, resume=True, progress=False)
        else:
            train(task, "", folder, progress=False, **COMMON, **settings)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if not isinstance(error, FledgeError):
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(process: int, folder: Path) -> None:
    """Wait for a process that is not killed."""
    status = os.waitpid(process, 0)[1]
    if status:
        raise AssertionError(f"The training failed: {(folder.parent / f'{folder.name}.log').read_text()[-2000:]}")


def kill(process: int, folder: Path, seconds: float) -> bool:
    """Kill a process after some seconds; return False if it had ended. Ask it for live frames meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            if status:
                raise AssertionError(f"It failed: {(folder.parent / f'{folder.name}.log').read_text()[-2000:]}")
            return False
        if (folder / FOLDER).is_dir():
            (folder / FOLDER / SIGN).touch()
        time.sleep(min(0.05, max(0.0, end - time.monotonic())))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def newest(run: Path) -> int:
    """Return the iteration of a run's newest checkpoint; 0 if there is none."""
    found = sorted(path.stem for path in (run / "checkpoints").glob("checkpoint_*.fledge"))
    return int(found[-1].rpartition("_")[2]) if found else 0


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts and lists by their paths."""
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for key, inner in enumerate(value) for k, v in flat(inner, f"{path}/{key}").items()}
    return {path: value}


def digest(value: Any) -> str:
    """Return a text that is equal only for values that are equal in every bit."""
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    return repr(value)


def read(run: Path) -> dict[str, str]:
    """Return the contents of a run, read by a forked process: reading starts threads, which this process must not have."""
    path = run.parent / f"{run.name}.json"
    process = os.fork()
    if not process:
        code = 1
        try:
            path.write_text(json.dumps(contents(run)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(process, 0)[1] == 0, f"{run} cannot be read"
    found: dict[str, str] = json.loads(path.read_text())
    return found


def contents(run: Path) -> dict[str, str]:
    """Return digests of everything that a run keeps, by name, without times."""
    history = CheckpointHistory(run / "checkpoints")
    state = flat(history.load_latest()[0])
    found = {f"state{name}": value for name, value in state.items() if not TIMES.fullmatch(name.rpartition("/")[2])}
    for number, line in enumerate((run / "metrics.jsonl").read_text().splitlines()):
        found |= {f"metrics/{number}/{k}": v for k, v in json.loads(line).items() if not TIMES.fullmatch(k)}
    with (run / "metrics.csv").open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            found |= {f"table/{number}/{k}": v for k, v in row.items() if not TIMES.fullmatch(k)}
    for entry in history.entries():
        weights = flat(history.load(entry, keys=["model"]), f"checkpoint/{entry.step}")
        found |= {**weights, f"checkpoint/{entry.step}/metric": entry.metric}  # a kill may leave an older one complete
    for path in sorted((run / "selves").glob("*")):
        found |= flat(load_checkpoint(path), f"{path.name}")
    for path in (run / FOLDER).glob("*.frec"):
        Recording(path).close()  # raises if it cannot be read
    rollouts = RolloutStorage(run / "rollouts")
    for path in sorted((run / "rollouts").iterdir()):
        if not path.name.startswith("."):
            found |= flat(dict(rollouts.load(int(path.stem.rpartition("_")[2])).items()), path.name)
    return {name: digest(value) for name, value in found.items()}


def differences(straight: dict[str, str], run: Path) -> list[str]:
    """Return the names of all that differs from the straight run, or that a kill left behind."""
    other = read(run)
    wrong = [name for name in sorted({*straight, *other}) if straight.get(name) != other.get(name)]
    return wrong + [str(path) for path in run.rglob(f"{TEMP_PREFIX}*")]


def run(kind: str, kills: int, seed: int, folder: Path, say: Any = print) -> dict[str, Any]:
    """Kill runs until there were enough kills; return the number of kills and of runs, and all differences."""
    find_task(KINDS[kind][0])  # loaded once, here
    assert threading.active_count() == 1, "processes are forked: no other thread may run"
    rng, done, runs, wrong = random.Random(seed), 0, 0, list[str]()
    begun = time.monotonic()
    finish(start(kind, folder / "straight"), folder / "straight")
    whole = time.monotonic() - begun
    straight = read(folder / "straight")
    assert any(name.startswith("self_") for name in straight) or kind != "league", "no past self joined"
    window = (
        whole / 3
    )  # of the moments of the kills; adapts to the machine's load, so that about half of the attempts get on
    while done < kills:
        runs += 1
        place = folder / f"killed_{runs}"
        attempts, before = 0, newest(place)
        while done < kills and kill(start(kind, place), place, rng.uniform(0.0, window)):
            done, attempts = done + 1, attempts + 1
            window *= 0.9 if newest(place) > before else 1.12
            before = newest(place)
            if done % 10 == 0:
                say(f"{kind}: {done} kills, window {window:.1f} s, run {runs} is at iteration {before}")
        if done >= kills:
            finish(start(kind, place), place)
        found = differences(straight, place)
        wrong += [f"run {runs} ({attempts} kills): {name}" for name in found]
        say(
            f"{kind}: run {runs} ended after {attempts} kills, {done} of {kills} in all; {len(found)} differences {found[:5]}"
        )
        if not found:
            shutil.rmtree(place)
    return {"kind": kind, "kills": done, "runs": runs, "values": len(straight), "seconds": whole, "differences": wrong}


if __name__ == "__main__":
    name, count, first, where = sys.argv[1:]
    Path(where).mkdir(parents=True, exist_ok=True)
    result = run(name, int(count), int(first), Path(where), lambda text: print(text, flush=True))
    print(json.dumps(result))
    sys.exit(bool(result["differences"]))
