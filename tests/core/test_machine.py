"""Threads: how many, and how they wait; and the device of each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fledge.core import machine
from fledge.core.errors import ConfigError


@pytest.mark.parametrize(
    ("wish", "cores", "ranks", "threads"),
    [
        (None, 8, 1, 8),
        (None, 8, 3, 2),
        (None, 2, 4, 1),
        ("3", 8, 1, 3),
        ("3", 8, 4, 3),
        ("2,1", 8, 1, 2),
        ("", 8, 2, 4),
        ("0", 8, 2, 4),
    ],
)
def test_torch_gets_the_threads_that_the_environment_says_else_its_share_of_the_cores(
    wish: str | None, cores: int, ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "default_threads", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wish is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wish)
    assert machine.torch_threads(ranks) == threads


@pytest.mark.parametrize("wish", ["abc", "-2", "1e3", "²", "99999999999", "x,2"])
def test_a_number_of_threads_that_is_none_is_told_with_the_variables_name(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", wish)
    with pytest.raises(ConfigError, match=f"OMP_NUM_THREADS is '{wish}', but must be a whole number from 1 to 1024"):
        machine.torch_threads()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch brings GNU OpenMP on Linux")
@pytest.mark.parametrize(("asked", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(asked: str | None, found: str) -> None:
    """Return the settings that the OpenMP runtime read when torch loaded it."""
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    env |= {"OMP_DISPLAY_ENV": "TRUE"} | ({} if asked is None else {"OMP_WAIT_POLICY": asked})
    done = subprocess.run([sys.executable, "-c", "import fledge, torch"], capture_output=True, text=True, env=env)
    assert f"OMP_WAIT_POLICY = '{found}'" in done.stderr


@pytest.mark.parametrize(
    ("wanted", "gpus", "local_rank", "device"),
    [
        ("auto", 0, 0, "cpu"),
        ("auto", 0, 3, "cpu"),
        ("auto", 1, 0, "cuda:0"),
        ("auto", 4, 3, "cuda:3"),
        ("cpu", 4, 1, "cpu"),
        ("cuda", 4, 0, "cuda:0"),
        ("cuda", 4, 2, "cuda:2"),
        ("cuda:2", 4, 0, "cuda:2"),
    ],
)
def test_every_rank_lands_on_a_gpu_of_its_own(wanted: str, gpus: int, local_rank: int, device: str) -> None:
    assert machine.pick_device(wanted, gpus, local_rank) == device


@pytest.mark.parametrize(
    ("wanted", "gpus", "local_rank", "sentence"),
    [
        ("cuda", 0, 0, "device=cuda, but PyTorch sees no CUDA device here: use device=cpu."),
        ("cuda:1", 0, 0, "sees no CUDA device"),
        ("cuda", 2, 2, "needs GPU 2 .counted from 0., but this machine has 2: set ranks=2, or device=cpu."),
        ("auto", 1, 1, "needs GPU 1 .*machine has 1"),
        ("cuda:4", 4, 0, "needs GPU 4 .*machine has 4"),
        ("cuda:1", 4, 1, "device=cuda:1 is one GPU, but there are several ranks"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(wanted: str, gpus: int, local_rank: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        machine.pick_device(wanted, gpus, local_rank)


def test_a_containers_limit_counts_as_free_memory(tmp_path: Path) -> None:
    assert machine._left_in_cgroup(str(tmp_path)) > 2**60  # no such cgroup
    for name, text in {
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "anon 5\ninactive_file 50\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert machine._left_in_cgroup(str(tmp_path)) == 150
    (tmp_path / "memory.max").write_text("max\n")
    assert machine._left_in_cgroup(str(tmp_path)) > 2**60
