"""How many ranks a run gets by itself, and where each of them is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fledge.training import ranks


@pytest.mark.parametrize(
    ("cores", "num_envs", "expected"),
    [
        (1, 8, 1),
        (2, 1024, 2),
        (3, 9, 3),
        (3, 1024, 2),
        (6, 7, 1),
        (6, 1024, 4),
        (10, 1024, 8),
        (12, 1024, 8),
        (14, 1024, 8),
        (20, 1024, 16),
        (24, 1024, 16),
    ],
)
def test_ranks_share_the_envs_out_evenly_on_any_number_of_cores(
    cores: int, num_envs: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "default_threads", lambda: cores)
    assert ranks.default_ranks("cpu", num_envs) == expected


@pytest.mark.parametrize(
    ("device", "gpus", "expected"), [("auto", 4, 4), ("cuda", 3, 2), ("cuda:1", 4, 1), ("auto", 0, 8)]
)
def test_on_gpus_there_is_a_rank_for_each(
    device: str, gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "default_threads", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert ranks.default_ranks(device, 1024) == expected


@pytest.mark.parametrize(("environ", "place"), [({}, (0, 1, 0)), ({"RANK": "9", "LOCAL_RANK": "1"}, (9, 1, 1))])
def test_a_rank_is_told_its_place_by_the_environment(
    environ: dict[str, str], place: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if environ:
        monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    with ranks.joined_ranks(1, "cpu", []) as found:
        assert (found.rank, found.size, found.local) == place


CHILD = "from fledge.training.ranks import joined_ranks\nwith joined_ranks(2, 'cpu', []): pass\n"
PARENT = """
import sys, time
from fledge.training.ranks import Children
children = Children()
children.start(2, ["-c", sys.argv[1]])
print(children.processes[1].pid, flush=True)
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_a_rank_whose_first_rank_was_killed_before_they_met_ends_too() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 60
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.1)
    alone = is_running(child)
    if alone:
        os.kill(child, signal.SIGKILL)
    assert not alone
