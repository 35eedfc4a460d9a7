"""Recordings for the tests of the player."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from fledge.app.play.roster import Roster
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.recordings import save_recording
from fledge.storage import RecordingWriter
from fledge.tasks.policy_loader import make_pilot
from fledge.tasks.registry import find_task


@functools.cache
def flights() -> Any:
    """Some flights of a simple pilot through a small crowd: crashes among them."""
    task = find_task("navigation")
    cfg = task.config(
        num_envs=16, num_maps=2, static_obstacles=80, moving_obstacles=24, decimation=8, max_episode_steps=800
    )
    agent = make_pilot(task, "straight")
    assert agent is not None
    return evaluate(agent, task, cfg, 16, 3, num_threads=1, highlights=16)


def record_flights(path: Path, **facts: Any) -> Path:
    """A recording of them."""
    found = flights()
    task = find_task("navigation")
    save_recording(path, task, found.highlights, found.decision_s, {"policy": "straight", **facts})
    return path


def record_duel(path: Path) -> Path:
    """Record a fight between two scripted policies in which missiles fly and a fighter is killed."""
    fight = Roster(find_task("aircombat")).begin(["envelope", "pursuit"], "head_on", seed=3)
    while fight.over is None and fight.time_s < 90:
        fight.step()
    fight.save(path)
    fight.close()
    return path


def record_generic(path: Path, episodes: int = 2) -> Path:
    """Record an unknown task: two objects on a plane, one of them launched, and a figure."""
    frame = {"pos": np.zeros((2, 2), np.float32), "shot_pos": np.zeros((2, 1, 2), np.float32),
             "shot_alive": np.zeros((2, 1), bool), "fuel_kg": np.zeros((), np.float32)}  # fmt: skip
    with RecordingWriter(path, "elsewhere.py:task", frame, 0.5, facts={"policy": "<b>bold</b>"}) as writer:
        for number in range(episodes):
            episode = writer.begin({}, {"episode": number})
            for t in range(60):
                frame["pos"] = np.float32([[300.0 * t, 0.0], [20_000 - 250.0 * t, 900.0 * number]])
                frame["shot_pos"] = np.float32([[[600.0 * t - 3000, 0.0]], [[0.0, 0.0]]])
                frame["shot_alive"] = np.array([[10 <= t < 40], [False]])
                frame["fuel_kg"] = np.float32(100 - t)
                writer.add(episode, frame)
            writer.end(episode, "<img src=x onerror=alert(1)>" if number else "success", 1.0)
    return path
