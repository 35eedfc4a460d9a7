"""How many ranks a run gets by itself, and where each of them is."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fledge.core.errors import ConfigError, FledgeError
from fledge.training import ranks, store
from fledge.training.launchers import place_from_environment
from fledge.training.meeting import meeting
from fledge.training.store import agree_on_prefix


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


def set_environment(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, _, value in (word.partition("=") for word in words.split()):
        monkeypatch.setenv(name, value)


MASTER = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("", None),
        ("RANK=colonel SLURM_PROCID=3 SLURM_NTASKS=4", None),
        ("WORLD_SIZE=1", (0, 1, 0)),
        ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", (0, 1, 0)),
        (f"RANK=9 WORLD_SIZE=12 LOCAL_RANK=1 {MASTER}", (9, 12, 1)),
        (f"RANK=9 WORLD_SIZE=12 {MASTER}", (9, 12, None)),
    ],
)
def test_a_rank_is_told_its_place_by_the_environment(
    words: str, place: tuple[int, int, int | None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, words)
    found = place_from_environment()
    assert (None if found is None else (found.rank, found.size, found.local)) == place


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("WORLD_SIZE=abc", "WORLD_SIZE is 'abc', but must be a whole number of at least 1"),
        ("WORLD_SIZE=0 RANK=0", "WORLD_SIZE is '0', but must be a whole number of at least 1"),
        ("WORLD_SIZE=2 RANK=5", "RANK is '5', but must be a whole number from 0 to 1"),
        ("WORLD_SIZE=1 RANK=1", "RANK is '1', but must be 0"),
        ("WORLD_SIZE=2", "RANK is not set, but must be a whole number from 0 to 1"),
        ("WORLD_SIZE=2 RANK=٢", "RANK is '٢', but must be a whole number"),
        ("WORLD_SIZE=2 RANK=0 LOCAL_RANK=-1", "LOCAL_RANK is '-1', but must be a whole number of at least 0"),
        ("WORLD_SIZE=2 RANK=0", "MASTER_ADDR is not set, but must name the host of rank 0"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=h", "MASTER_PORT is not set, but must be a whole number from 1 to 65535"),
    ],
)
def test_an_environment_that_does_not_say_the_rank_is_refused_in_a_sentence(
    words: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_environment(monkeypatch, words)
    with pytest.raises(ConfigError, match=f"The environment variable {sentence}.*torchrun"):
        place_from_environment()


def test_ranks_ignore_what_an_earlier_attempt_left_in_torchruns_store() -> None:
    shared = dist.HashStore()
    prefixes = set()
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            found = set(pool.map(lambda rank: agree_on_prefix(shared, rank, 3), range(3)))
        assert len(found) == 1
        prefixes |= found
    assert len(prefixes) == 3


CHILD = "from fledge.training.meeting import meeting\nwith meeting() as met: met.hear()\n"
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


def test_a_rank_says_who_is_missing_and_gives_up_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = f"127.0.0.1:{port}"
    monkeypatch.setattr(store, "NOTICE_S", 0.1)
    monkeypatch.setattr(store, "TIMEOUT", timedelta(seconds=1))
    set_environment(monkeypatch, f"WORLD_SIZE=3 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}")
    with pytest.raises(
        FledgeError, match=f"Rank 0 waited .* for the other 2 of 3 ranks at {place}: look for their errors"
    ):
        meeting().__enter__()
    assert f"waiting for 2 of 3 ranks at {place}" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(FledgeError, match=f"Rank 1 of 3 cannot connect at {place}"):
        meeting().__enter__()
    assert f"waiting for the store of rank 0 at {place}" in capsys.readouterr().err
