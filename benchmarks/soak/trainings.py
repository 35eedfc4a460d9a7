"""Trainings of the soak test: one that runs all the time, two that are killed and resumed, and one on a full disk."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
from pathlib import Path

from benchmarks.soak.plan import Plan, Workload, wait_until
from benchmarks.soak.sampling import FILLER
from fledge.storage import CheckpointHistory

ENDLESS = ("total_frames=1000000000000", "tensorboard=false", "ranks=1", "threads=1")
FLIGHTS = ("navigation", "env.num_envs=32", "env.num_maps=2", "env.static_obstacles=60", "env.moving_obstacles=16",
           "env.max_episode_steps=300", "policy.hidden=[32]")  # fmt: skip
PPO = ("ppo.rollout_steps=16", "ppo.minibatch=128")
SAC = ("algo=sac", "replay.steps=8", "replay.segment=16", "replay.warm_up=0", "replay.batch=64", "replay.updates=2",
       "replay.size=4000")  # fmt: skip
LEAGUE = ("aircombat", "--preset", "", "env.num_envs=32", "env.spacetime=false", "env.scenario=chase",
          "env.opponent=placeholder", "env.max_episode_s=50", "policy.hidden=[16]", "policy.tokens=8",
          "league.ladder=[placeholder,random]", "league.window=20", "league.promote_at=0.05",
          "league.self_beaten_at=0.05", "league.past_selves=2", "league.self_play=0.3")  # fmt: skip
KILLED = {
    "killed SAC": (*FLIGHTS, *SAC, *ENDLESS, "save_interval=5", "eval_interval=40", "eval_episodes=16"),
    "killed league": (*LEAGUE, *PPO, *ENDLESS, "save_interval=2"),
}
START_S = 180.0  # time for a training to start on a busy machine
DISK_MB = 64
CYCLES = 6  # times that the disk fills up


def steps_of(run: Path) -> list[int]:
    """Return the steps in a run's metrics, without a last line that is incomplete."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    except OSError:
        return []
    return [int(json.loads(line)["step"]) for line in lines]


class LongTraining(Workload):
    """A training that is watched, evaluated and saved about every second, in one process until the end."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "training")

    def work(self) -> None:
        run = self.plan.place / "watched"
        often = ("save_interval=1", "eval_interval=20", "eval_episodes=32")
        size = ("env.num_envs=256", "ppo.rollout_steps=32", "ppo.minibatch=1024")  # an iteration takes about a second
        process = self.launch(self.name, "train", *FLIGHTS, *ENDLESS, *often, *size, "--folder", str(run))
        saved = 0
        while not self.plan.stop.wait(1.0):
            if process.poll() is not None:
                return self.plan.fault(f"the training ended: {self.last_words(self.name)}")
            files = len([*(run / "checkpoints").glob("checkpoint_*.fledge")])
            self.plan.count("saves", files - saved)
            saved = files
            if saved:
                self.ready.set()


class KilledTrainings(Workload):
    """A SAC run and a league run that are killed at random moments and resumed, in turns."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "killed trainings")

    def work(self) -> None:
        for name in itertools.cycle(KILLED):
            if self.plan.stop.is_set():
                return
            self.train_and_kill(name, self.plan.place / name.replace(" ", "_"))

    def train_and_kill(self, name: str, run: Path) -> None:
        """Start or resume a run, and kill it while it starts or at some moment afterwards."""
        resumes = (run / "config.yaml").exists()
        before = steps_of(run)
        words = ["--resume", str(run)] if resumes else [*KILLED[name], "--folder", str(run)]
        process = self.launch(name, "train", *words)
        if self.plan.random.random() < 0.15:
            self.plan.stop.wait(self.plan.random.uniform(0.0, 6.0))
        else:
            began = wait_until(self.plan, lambda: process.poll() is not None or steps_of(run) != before, START_S)
            if not began and process.poll() is None:
                self.plan.fault(f"{name} made no step within {START_S:.0f} s")
            self.ready.set()
            self.plan.stop.wait(self.plan.random.uniform(0.0, 8.0))
        if process.poll() is not None:
            self.plan.fault(f"{name} ended by itself: {self.last_words(name)}")
        process.kill()
        process.wait()
        self.plan.count("kills")
        self.plan.event(name, "killed")
        steps = steps_of(run)
        if steps != list(range(1, len(steps) + 1)):
            self.plan.fault(f"{name}: the steps in metrics.jsonl have a gap or a repetition")


class StarvedTraining(Workload):
    """A training whose disk is full half of the time: it must go on, or end with one sentence and resume."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, "full disk")
        self.run_folder = plan.place / "starved" / "run"
        self.run_folder.parent.mkdir()
        self.mounted = mount_small_disk(self.run_folder.parent)
        self.filler = self.run_folder.parent / FILLER
        way = (
            f"a tmpfs of {DISK_MB} MB" if self.mounted else "RLIMIT_FSIZE of the training (mounting a disk needs root)"
        )
        plan.facts["disk"] = way

    def work(self) -> None:
        half = self.plan.minutes * 60 / CYCLES / 2
        command = (*FLIGHTS, *PPO, *ENDLESS, "save_interval=10", "--folder", str(self.run_folder))
        process = self.launch(self.name, "train", *command)
        wait_until(self.plan, lambda: process.poll() is not None or self.newest() > 0, START_S)
        self.ready.set()
        while not self.plan.stop.wait(half):
            self.fill(process)
            self.plan.stop.wait(half)
            self.check_readable()
            self.free(process)
            process = self.see_progress(process)

    def newest(self) -> int:
        """Return the number of the newest checkpoint that can be read; 0 if there is none."""
        found = CheckpointHistory(self.run_folder / "checkpoints").latest() if self.run_folder.exists() else None
        return 0 if found is None else found.step

    def fill(self, process: subprocess.Popen[bytes]) -> None:
        """Fill the disk, or forbid the training to write files."""
        self.plan.event(self.name, "full")
        if not self.mounted:
            return limit_files(process, 1000)
        try:
            with self.filler.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(2**16))
        except OSError:  # full
            self.plan.count("full disks")

    def free(self, process: subprocess.Popen[bytes]) -> None:
        """Remove the filler and the weights of old checkpoints, as a user would, or allow the training to write again."""
        self.plan.event(self.name, "free")
        if not self.mounted:
            return limit_files(process, resource.RLIM_INFINITY)
        self.filler.unlink(missing_ok=True)
        for old in sorted((self.run_folder / "checkpoints").glob("checkpoint_*.fledge"))[:-8]:
            old.unlink()

    def check_readable(self) -> None:
        """Load the newest checkpoint while the disk is full."""
        if self.run_folder.exists():
            CheckpointHistory(self.run_folder / "checkpoints").load_latest()

    def see_progress(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Wait for a newer checkpoint, after a resume if the full disk ended the training; return its process."""
        before = self.newest()
        if not wait_until(self.plan, lambda: process.poll() is not None or self.newest() > before, START_S):
            self.plan.fault("the training saved nothing after its disk was full")
        if process.poll() is None:
            return process
        if process.returncode != 1 or not self.last_words(self.name, "fledge: "):
            self.plan.fault(f"a full disk ended the training with {process.returncode}: {self.last_words(self.name)}")
        self.plan.count("trainings that a full disk ended")
        self.plan.event(self.name, "ended")
        process = self.launch(self.name, "train", "--resume", str(self.run_folder))
        if not wait_until(self.plan, lambda: process.poll() is not None or self.newest() > before, START_S):
            self.plan.fault("the training saved nothing after it was resumed on a disk that had been full")
        return process

    def end(self) -> None:
        super().end()
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.run_folder.parent)], check=False)


def mount_small_disk(folder: Path) -> bool:
    """Mount a small tmpfs; return False where that is not allowed."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def limit_files(process: subprocess.Popen[bytes], size: int) -> None:
    """Limit the size of the files that a process writes, in bytes, unless it has ended."""
    if process.poll() is None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
