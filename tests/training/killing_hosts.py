"""Train on several hosts (network namespaces), kill ranks and hosts, slow the network down, and compare with one host.

    python -m tests.training.killing_hosts equal --ranks 3      several hosts give the bits of one host
    python -m tests.training.killing_hosts kills --kills 20     after every kill the run goes on bit for bit
    python -m tests.training.killing_hosts slow                 20 ms and 1 % loss: slower, the same bits
    python -m tests.training.killing_hosts speed                decisions/s on one host, two hosts, two distant hosts

Needs Linux and root. Ranks are forks of this process, so that a start takes a second; no host but 0 has the run's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from fledge.core.errors import FledgeError
from fledge.learn import flat as flat_parameters
from fledge.tasks.registry import find_task
from fledge.training.api import train
from tests.training.hosts import PORT, Host, Hosts, why_not
from tests.training.killing import newest, read

ITERATIONS = 12
SETTINGS: dict[str, Any] = {
    "env.num_envs": 24, "ppo.rollout_steps": 16, "ppo.minibatch": 96, "policy.hidden": [128, 128], "tensorboard": False,
    "total_frames": 24 * 16 * ITERATIONS, "save_interval": 1, "rollout_save_interval": 4, "threads": 1,
}  # fmt: skip
SLOW = (20.0, 1.0)  # ms, percent
FAST: dict[str, Any] = {
    "env.num_envs": 512, "ppo.minibatch": 2048, "total_frames": 512 * 16 * 12, "save_interval": 1000,
    "rollout_save_interval": 0,
}  # fmt: skip
LOST_S = 75.0  # by then every rank must have noticed that another is lost


def start(rank: int, ranks: int, run: Path, host: Host | None = None, port: int = PORT, **settings: Any) -> int:
    """Fork a process that trains as one rank, on a host or on this machine; return its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        here = host.path(run.parent) if host else run.parent
        errors = os.open(here / f"log{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        if host:
            host.enter()
        address = "10.77.0.1" if host else "127.0.0.1"
        place = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": address, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in place.items()}
        connect = flat_parameters.connect_average

        def noted(values: Any) -> Any:
            average = connect(values)
            print(f"average: {type(average).__name__}", file=sys.stderr)
            return average

        flat_parameters.connect_average = noted
        train("gym:CartPole-v1", "", run, "auto", progress=rank == 0, **{**SETTINGS, **settings})
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if not isinstance(error, FledgeError):
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(processes: list[int], seconds: float) -> dict[int, int]:
    """Wait for processes; return the status of each that ended in time."""
    ended: dict[int, int] = {}
    end = time.monotonic() + seconds
    while len(ended) < len(processes) and time.monotonic() < end:
        for process in set(processes) - set(ended):
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                ended[process] = status
        time.sleep(0.02)
    return ended


def stop(processes: list[int]) -> None:
    """Kill processes that have not ended, as a launcher does."""
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def finish(processes: list[int], folder: Path, seconds: float = 600.0) -> None:
    """Wait until all ranks have ended without an error."""
    ended = wait(processes, seconds)
    left = [process for process in processes if process not in ended]
    stop(left)
    if left or any(ended.values()):
        logs = "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in folder.parent.rglob("log*.txt"))
        raise AssertionError(f"ended {ended}, still running {left}\n{logs}")


def straight(folder: Path, ranks: int, **settings: Any) -> Path:
    """Train on one host, without any kill; return the run."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    finish([start(rank, ranks, folder / "run", port=port, **settings) for rank in range(ranks)], folder / "run")
    return folder / "run"


def on_hosts(hosts: list[Host], run: Path, **settings: Any) -> list[int]:
    return [start(host.number, len(hosts), run, host, **settings) for host in hosts]


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of all values that differ between two runs."""
    first, second = read(one), read(other)
    assert len(first) > 100
    return [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]


def equal(folder: Path, ranks: int, slow: bool = False) -> dict[str, Any]:
    """Compare a run on several hosts with the same run on one host."""
    one = straight(folder / "one", ranks)
    with Hosts(ranks, folder / "hosts", shared=False, slow=SLOW if slow else None) as hosts:
        begun = time.monotonic()
        finish(on_hosts(hosts, hosts[0].folder / "run"), hosts[0].folder)
        seconds = time.monotonic() - begun
        away = [host.name for host in hosts[1:] if (host.private or folder).joinpath("run").exists()]
        ways = {
            line
            for host in hosts
            for line in host.path(hosts[0].folder / f"log{host.number}.txt").read_text().split("\n")
        }
        found = differences(one, hosts[0].path(hosts[0].folder / "run"))
    same = {line for line in (one.parent / "log0.txt").read_text().split("\n") if line.startswith("average")}
    ways = {line for line in ways if line.startswith("average")}
    return {
        "ranks": ranks,
        "differences": found,
        "seconds": seconds,
        "wrote_elsewhere": away,
        "averages": [*same, *ways],
    }


def kills(folder: Path, ranks: int, count: int, seed: int, vanish: int = 4, say: Any = print) -> dict[str, Any]:
    """Kill ranks, and let hosts vanish, at random moments; compare each run that ends with the straight one.

    Args:
        vanish: How many of the kills also cut the host's link first, so that no connection is closed.
    """
    begun = time.monotonic()
    one, rng, done, runs = straight(folder / "one", ranks), random.Random(seed), 0, 1
    window = 0.6 * (time.monotonic() - begun)
    silent, noticed, wrong, sentences = set(rng.sample(range(count), vanish)), [0.0], list[str](), 0
    with Hosts(ranks, folder / "hosts", shared=False) as hosts:
        run = hosts[0].folder / "run1"
        while True:
            for host in hosts:
                host.path(run.parent / f"log{host.number}.txt").unlink(missing_ok=True)
            processes = on_hosts(hosts, run)
            before = newest(hosts[0].path(run))
            if done == count:
                finish(processes, hosts[0].folder)
                wrong += differences(one, hosts[0].path(run))
                break
            victim, cut = rng.randrange(ranks), done in silent
            ended = wait(processes, rng.uniform(1.0, window))
            if cut and not ended:  # in the middle of the training
                until = time.monotonic() + 60
                while newest(hosts[0].path(run)) <= before and not ended and time.monotonic() < until:
                    ended = wait(processes, 0.05)
            if ended:  # the run was over before
                finish([process for process in processes if process not in ended], hosts[0].folder)
                assert not any(ended.values()), "a rank failed by itself"
                wrong += differences(one, hosts[0].path(run))
                runs, run = runs + 1, hosts[0].folder / f"run{runs + 1}"
                continue
            met = "run: " in hosts[0].path(run.parent / "log0.txt").read_text()
            if cut:
                hosts[victim].link(False)
            os.kill(processes[victim], signal.SIGKILL)
            os.waitpid(processes.pop(victim), 0)
            moment = time.monotonic()
            ended = wait(processes, LOST_S if met else 0.5)
            if met:
                assert len(ended) == len(processes), f"not all ranks noticed within {LOST_S} s"
                noticed.append(time.monotonic() - moment)
                logs = [hosts[n].path(run.parent / f"log{n}.txt").read_text() for n in range(ranks) if n != victim]
                told = sum(log.count("Error: ") for log in logs)
                sentences = max(sentences, told)
            stop([process for process in processes if process not in ended])
            if cut:
                hosts[victim].link(True)
            done += 1
            after = newest(hosts[0].path(run))
            window *= 0.9 if after > before else 1.15
            say(f"{done} kills, rank {victim}{' (host vanished)' if cut else ''}: run {runs} is at iteration {after}, "
                f"{'noticed after ' + format(noticed[-1], '.1f') + ' s' if met else 'before the ranks had met'}")  # fmt: skip
    return {
        "kills": done, "vanished": len(silent), "runs": runs, "differences": wrong, "noticed_s_max": max(noticed),
        "errors_at_once": sentences,
    }  # fmt: skip


def speed(folder: Path, turns: int, task_settings: dict[str, Any]) -> dict[str, Any]:
    """Return decisions/s of two ranks on one host, on two hosts, and on two hosts with 20 ms and 1 % loss, in turns."""
    rates: dict[str, list[float]] = {"one host": [], "two hosts": [], "two hosts, 20 ms, 1 % loss": []}
    for turn in range(turns):
        for name, found in rates.items():
            place = folder / f"{turn}_{len(name)}"
            if name == "one host":
                done = straight(place, 2, **task_settings)
            else:
                with Hosts(2, place, shared=False, slow=SLOW if "ms" in name else None) as hosts:
                    finish(on_hosts(hosts, place / "run", **task_settings), place)
                    done = hosts[0].path(place / "run")
            rows = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
            found.append(statistics.median(row["frames_per_second"] for row in rows[2:]))
    return {name: {"median": statistics.median(found), "all": found} for name, found in rates.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("equal", "kills", "slow", "speed"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--vanish", type=int, default=4, help="how many of the kills cut the link first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    find_task("gym:CartPole-v1")  # loaded once, here
    assert threading.active_count() == 1, "processes are forked: no other thread may run"
    with tempfile.TemporaryDirectory(prefix="fledge_hosts_") as name:
        folder = Path(name)
        if given.what == "kills":
            result = kills(
                folder, given.ranks, given.kills, given.seed, given.vanish, lambda text: print(text, flush=True)
            )
        elif given.what == "speed":
            result = speed(folder, given.turns, FAST)
        else:
            result = equal(folder, given.ranks, given.what == "slow")
    print(json.dumps(result))
    return bool(result.get("differences"))


if __name__ == "__main__":
    sys.exit(main())
