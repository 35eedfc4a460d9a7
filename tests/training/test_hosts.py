"""Training on several hosts (network namespaces) gives the bits of one host, and goes on after kills and lost hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fledge.storage import CheckpointHistory
from tests.training.hosts import (
    Hosts,
    needs_hosts,
    ranks_env,
    torchrun_words,
    train_words,
    wait_until,
)

pytestmark = [pytest.mark.slow, needs_hosts]
TINY = ["gym:CartPole-v1", "policy.hidden=[128,128]", "env.num_envs=12", "ppo.rollout_steps=16", "ppo.minibatch=96"]
TINY += ["tensorboard=false", "save_interval=1", "threads=1", "total_frames=1920"]


def killing(*words: object) -> dict[str, Any]:
    """Run the module `killing_hosts`, which forks and so needs a process without threads; return its result."""
    command = [sys.executable, "-m", "tests.training.killing_hosts", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(("what", "ranks"), [("equal", 2), ("equal", 3), ("slow", 2)])
def test_several_hosts_give_the_bits_of_one_host_also_over_a_slow_network(what: str, ranks: int) -> None:
    found = killing(what, "--ranks", ranks)
    assert found["differences"] == []
    assert found["wrote_elsewhere"] == [], "only rank 0 needs the run's folder"
    assert set(found["averages"]) == {"average: SharedAverage", "average: ExchangedAverage"}


def test_after_kills_of_ranks_and_a_vanished_host_the_run_goes_on_bit_for_bit() -> None:
    found = killing("kills", "--ranks", 3, "--kills", 5, "--vanish", 1)
    assert found["kills"] == 5
    assert found["differences"] == []
    assert found["errors_at_once"] <= 2, "one, or one for each host that is left if the store is lost"


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("*.fledge"))


def test_torchruns_own_restart_continues_the_run_on_hosts_that_share_no_folder(tmp_path: Path) -> None:
    with Hosts(2, tmp_path / "hosts", shared=False) as hosts:
        run = hosts[0].folder / "run"
        words = [*TINY, "total_frames=7680", "--folder", run, "--resume", "auto"]
        started = [host.start(torchrun_words(host, 2, hosts[0], 1, *words, restarts=3)) for host in hosts]
        wait_until(lambda: len(checkpoints(hosts[0].path(run))) > 3, 300)
        commands = {process: Path(f"/proc/{process}/cmdline").read_text() for process in hosts[1].processes()}
        (rank,) = [process for process, text in commands.items() if "fledge.cli" in text and "distributed" not in text]
        os.kill(rank, signal.SIGKILL)
        assert [process.wait(500) for process in started] == [0, 0], hosts[0].log() + hosts[1].log()
        assert "continues bit for bit" in hosts[0].log()
        assert hosts[0].log().count("lost the connection") == 1
        assert "fledge:" not in hosts[1].log()
        assert CheckpointHistory(hosts[0].path(run) / "checkpoints").load_latest()[0]["iteration"] == 40


@pytest.mark.parametrize("shared", [True, False])
def test_with_fewer_hosts_the_run_continues_and_says_what_changed(tmp_path: Path, shared: bool) -> None:
    with Hosts(3, tmp_path / "hosts", shared=shared) as hosts:
        run = hosts[0].folder / "run"
        for count, words in ((3, [*TINY, "--folder", run]), (2, ["--resume", run, "total_frames=3840"])):
            started = [
                host.start(train_words(*words), ranks_env(host, host.number, count, hosts[0])) for host in hosts[:count]
            ]
            assert [process.wait(300) for process in started] == [0] * count, hosts[0].log()
        assert "continues with another number of ranks: envs begin new episodes" in hosts[0].log()
        assert len(CheckpointHistory(hosts[0].path(run) / "checkpoints").load_latest()[0]["ranks"]) == 2
        assert hosts[1].path(run).exists() == shared


def test_misuse_and_a_wrong_host_are_one_sentence_of_one_rank(tmp_path: Path) -> None:
    with Hosts(2, tmp_path / "hosts", shared=False) as hosts:
        run = hosts[0].folder / "run"
        place = hosts[1].path(run)
        (place / "checkpoints").mkdir(parents=True)
        (place / "config.yaml").write_text("task: gym:CartPole-v1\n")
        for words, sentence in (
            ([*TINY, "env.num_envs=13"], "env.num_envs is 13, but must be a multiple of the 2 ranks"),
            (["--resume", run], "has the run"),
        ):
            started = [host.start(train_words(*words), ranks_env(host, host.number, 2, hosts[0])) for host in hosts]
            codes = [process.wait(300) for process in started]
            assert codes == [2, 1], hosts[0].log()
            assert sentence in hosts[0].log()
        assert "fledge:" not in hosts[1].log()
        assert "Traceback" not in hosts[0].log() + hosts[1].log()
