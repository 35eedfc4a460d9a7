"""The group of all commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fledge.cli
from fledge.tasks.registry import find_task, task_names
from tests.cli.policy_files import call


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["eval"],
        ["train"],
        ["advise"],
        ["export"],
        ["inspect"],
        ["doctor"],
        ["convert"],
        ["envelope"],
    ],
)
def test_help_exists_and_says_something(command: list[str]) -> None:
    done = call(*command, "--help")
    assert done.exit_code == 0
    assert len(done.output) > 150


@pytest.mark.parametrize(("given", "told"), [("2,1", "2"), ("abc", "OMP_NUM_THREADS is 'abc', but must be")])
def test_threads_may_be_given_for_each_level_and_must_be_numbers(given: str, told: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "NUMEXPR_NUM_THREADS"} | {"OMP_NUM_THREADS": given}
    code = "import fledge.storage; from fledge.core.machine import torch_threads; print(torch_threads())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert told in (done.stdout + done.stderr).splitlines()[-1]


def test_the_package_itself_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "fledge", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("fledge")


def test_bench_says_where_the_benchmarks_are() -> None:
    done = call("bench", "sim")
    assert done.exit_code == 2
    assert "Benchmarks run from a checkout: python -m benchmarks sim." in done.output


@pytest.mark.parametrize("path", sorted((Path(fledge.cli.__file__).parent).glob("*.py")), ids=lambda path: path.stem)
def test_a_command_has_a_file_of_its_own(path: Path) -> None:
    assert len(re.findall(r"^@main.command", path.read_text(), re.MULTILINE)) <= 1


@pytest.mark.parametrize("task", [*task_names(), "gym:CartPole-v1"])
def test_the_help_of_train_names_every_preset_of_every_task(task: str) -> None:
    text = " ".join(call("train", "--help").output.split())
    name = task.partition(":")[0]
    told = text.partition(f"for {name} ")[2].partition(";")[0]
    assert told.split(", ") == find_task(task).presets.names("train")
