"""Each launcher's variables give the rank; contradictory ones one sentence; the job files in docs/ run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.training import connections
from fledge.training.launchers import first_host, master_address, place_from_environment
from fledge.training.run_folder import newest_saved, refuse_other_host

JOBS = Path(__file__).parents[2] / "docs" / "guides" / "jobs"
PREFIXES = ("SLURM_", "OMPI_", "PET_", "TORCHELASTIC_", "MASTER_")
STEP = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NODELIST=node[03-04] SLURM_PROCID=5 SLURM_LOCALID=1"
MPI = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=29500"
PLAIN = "MASTER_ADDR=h MASTER_PORT=29500"


@pytest.fixture
def set_words(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in os.environ:
        if name.startswith(PREFIXES) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name)

    def put(words: str) -> None:
        for name, _, value in (word.partition("=") for word in words.split()):
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (STEP, (5, 8, 1)),
        (f"{STEP} WORLD_SIZE=8", (5, 8, 1)),
        (f"{STEP} WORLD_SIZE=8 RANK=5 LOCAL_RANK=0", (5, 8, 0)),
        (f"{STEP} WORLD_SIZE=1", (0, 1, 0)),
        (f"{STEP} RANK=17 WORLD_SIZE=64 LOCAL_RANK=1 TORCHELASTIC_RUN_ID=x {PLAIN}", (17, 64, 1)),
        (MPI, (3, 4, 1)),
        (f"RANK=2 WORLD_SIZE=4 {PLAIN} KUBERNETES_SERVICE_HOST=10.0.0.1", (2, 4, None)),
        (f"RANK=2 WORLD_SIZE=4 {PLAIN} PET_NNODES=4", (2, 4, None)),
    ],
)
def test_a_launchers_variables_give_the_rank(words: str, place: tuple[int, int, int | None], set_words: Any) -> None:
    set_words(words)
    found = place_from_environment()
    assert found is not None
    assert (found.rank, found.size, found.local) == place


@pytest.mark.parametrize(
    "words",
    [
        "SLURM_JOB_ID=77 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODELIST=node[03-04]",  # a job script
        "SLURM_JOB_ID=77 SLURM_NTASKS=8 SLURM_NNODES=2",  # the shell of salloc
        f"{STEP} SLURM_STEP_ID=4294967290",  # the same, as an interactive step
        f"{STEP} SLURM_STEP_ID=4294967291",  # the step of a job script
        f"{STEP} SLURM_STEP_NUM_TASKS=1",
        f"{STEP} SLURM_PTY_PORT=4711",  # srun --pty bash
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
        "PET_NNODES=1",
        "SLURM_STEP_NUM_TASKS=",
        "OMPI_COMM_WORLD_SIZE=",
        "PET_NNODES=",
        "WORLD_SIZE= RANK=",
    ],
)
def test_a_shell_or_a_script_of_a_job_waits_for_no_ranks(words: str, set_words: Any) -> None:
    set_words(words)
    assert place_from_environment() is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"{STEP} WORLD_SIZE=4 RANK=3", "WORLD_SIZE=4, but srun set SLURM_STEP_NUM_TASKS=8"),
        (f"{STEP} WORLD_SIZE=8 RANK=0", "RANK=0, but srun set SLURM_PROCID=5"),
        (f"{MPI} WORLD_SIZE=2 RANK=0", "WORLD_SIZE=2, but mpirun set OMPI_COMM_WORLD_SIZE=4"),
        (f"{STEP} SLURM_PROCID=9", "SLURM_PROCID is '9', but must be a whole number from 0 to 7"),
        ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", "MASTER_ADDR is not set"),
        *[
            (f"{STEP} SLURM_STEP_ID={x}", f"SLURM_STEP_ID is '{x}', but must be")
            for x in ("garbage", "x7", "4294967296")
        ],
        (f"{STEP} SLURM_JOB_ID=garbage", "SLURM_JOB_ID is 'garbage', but must be"),
        (f"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=x {PLAIN}", "LOCAL_WORLD_SIZE is 'x', but must be"),
        ("PET_NNODES=2:4", "PET_NNODES is '2:4', which only torchrun reads"),
        ("PET_NNODES=2", "start the container with `torchrun -m fledge.cli train"),
    ],
)
def test_contradictory_or_missing_variables_are_one_sentence(words: str, sentence: str, set_words: Any) -> None:
    set_words(words)
    with pytest.raises(ConfigError) as caught:
        place_from_environment()
    assert sentence in str(caught.value)


def test_under_slurm_rank_0_is_on_the_first_node_at_a_port_of_the_step(set_words: Any) -> None:
    set_words(STEP)
    host, port = master_address(5)
    assert host == "node03"
    assert 20_000 <= port < 32_000
    set_words("SLURM_STEP_ID=1")
    assert master_address(5) == ("node03", port + 1)
    set_words("SLURM_STEP_ID=")
    assert master_address(5) == ("node03", port)
    set_words("MASTER_ADDR=other MASTER_PORT=4000")
    assert master_address(5) == ("other", 4000)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("one", "one"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[07,09-12],m1", "n07"), ("n[1-2]-ib,x", "n1-ib"),
        ("10.0.0.1", "10.0.0.1"), ("rack[1-2]node[3-4]", "rack1node3"), ("r[02,4]n[7]-ib,x[1]", "r02n7-ib"),
    ],
)  # fmt: skip
def test_the_first_host_of_slurms_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize("nodes", ["", "n[", "n[x]", "[]"])
def test_what_is_no_list_of_hosts_is_refused(nodes: str) -> None:
    with pytest.raises(ConfigError, match="not a list of hosts: set MASTER_ADDR"):
        first_host(nodes)


# ---- connections, and the run on another host ------------------------------------------------------------------------


def test_a_silent_connection_ends_after_its_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
            assert connections.end_silent_connections() >= 2
            for end in (near, far):
                assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * connections.LOST_S
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < connections.LOST_S


def test_gloos_interface_is_left_alone_on_one_machine_and_if_the_user_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    connections.choose_interface("127.0.0.1", 29500)
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    connections.choose_interface("10.1.2.3", 29500)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def make_run(folder: Path, iteration: int) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("task: x\n")
    if iteration:
        (folder / "checkpoints" / f"checkpoint_{iteration:09d}.fledge").touch()
    return folder


def test_a_run_that_is_newer_on_another_host_is_not_begun_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 20)
    assert [newest_saved(each) for each in (None, tmp_path / "none", run)] == [-1, -1, 20]
    refuse_other_host(run, [])
    refuse_other_host(run, [("a", 20), ("b", -1), ("c", 20)])
    with pytest.raises(
        ConfigError, match=r"b has the run .* up to iteration 40, but rank 0 is on a, which has it up to .* 20"
    ):
        refuse_other_host(run, [("a", 20), ("b", 40)])
    with pytest.raises(ConfigError, match="rank 0 is on a, which does not have it: start rank 0 on b"):
        refuse_other_host(tmp_path / "none", [("a", -1), ("b", 0)])


# ---- job files -------------------------------------------------------------------------------------------------------


def test_the_slurm_job_file_runs(tmp_path: Path) -> None:
    job = JOBS / "train.sbatch"
    assert subprocess.run(["bash", "-n", job]).returncode == 0
    for name, text in (
        ("srun", '#!/bin/sh\n[ "$1" = --kill-on-bad-exit=1 ] || exit 9\nshift\nexec "$@" --help-config\n'),
        ("fledge", f'#!/bin/sh\nexec {sys.executable} -m fledge.cli "$@"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    place = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NAME": "fledge"}
    done = subprocess.run(
        ["bash", job, "ppo.lr=3e-4"],
        env={**os.environ, **place, "SLURM_CPUS_PER_TASK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "env.num_envs" in done.stdout
    directives = [line for line in job.read_text().splitlines() if line.startswith("#SBATCH")]
    words = dict(line.split()[1].removeprefix("--").partition("=")[::2] for line in directives)
    assert 16384 % (int(words["nodes"]) * int(words["ntasks-per-node"])) == 0


def test_the_kubernetes_job_file_is_a_command_that_runs() -> None:
    job = yaml.safe_load((JOBS / "pytorchjob.yaml").read_text())
    assert job["kind"] == "PyTorchJob"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    pods = sum(each["replicas"] for each in replicas.values())
    assert 16384 % (pods * int(job["spec"]["nprocPerNode"])) == 0
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch", "the operator sets the variables of the container of this name"
    launcher, module, program, *words = container["command"]
    assert (launcher, module, program) == ("torchrun", "-m", "fledge.cli")
    done = CliRunner().invoke(main, [*words, "--help-config"])
    assert done.exit_code == 0, done.output
    assert "s3://bucket/big" in done.output
