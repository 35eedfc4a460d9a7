"""monitor.health: what `fledge doctor` says about a machine, healthy and not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from fledge.monitor import health
from fledge.monitor.health import Check, driver_version, examine_machine, render
from tests.commands import fledge

NAMES = {"Python", "torch", "warp-lang", "GPU", "threads", "memory", "kernel cache", "fonts", "browser app"}


def found(name: str) -> Check:
    return next(check for check in examine_machine() if check.name == name)


def test_every_part_is_checked_and_every_problem_has_a_fix() -> None:
    checks = examine_machine()
    assert {check.name for check in checks} == NAMES
    assert all(bool(check.fix) == (check.state != "ok") for check in checks)
    assert len(list(render(checks))) >= len(NAMES)


def test_the_command_prints_json_and_refuses_to_repair_a_machine() -> None:
    done = fledge("doctor", "--json")
    assert {check["name"] for check in json.loads(done.stdout)} == NAMES
    done = fledge("doctor", "--repair")
    assert done.returncode == 2
    assert "--repair needs a folder" in done.stderr


def test_a_version_out_of_range_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "package_version", lambda name: "1.2.0")
    monkeypatch.setattr(health, "_wanted", lambda name: ">=1.19,<2")
    assert found("warp-lang") == Check(
        "warp-lang", "problem", "1.2.0, but Fledge needs >=1.19,<2", "pip install 'warp-lang>=1.19,<2'"
    )


def test_a_wrong_number_of_threads_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert "OMP_NUM_THREADS" in found("threads").fix


def test_a_container_with_fewer_cpus_than_threads_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(health, "_cpu_quota", lambda: 2.0)
    assert found("threads").fix.startswith("set OMP_NUM_THREADS=2")


def test_too_little_memory_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "available_bytes", lambda device: 2**30)
    assert found("memory").found == "1.0 GiB available, less than 2"


def test_a_missing_extra_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check = found("browser app")
    assert (check.state, check.fix) == ("optional", "pip install 'fledge[ui]'")


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Jul 17 20:23:58 UTC 2025\nGCC version: 12\n"


@pytest.mark.parametrize(
    ("driver", "cuda", "says"),
    [
        ("535.183.01", "13.0", "CUDA 13 needs 580"),
        ("580.65.06", None, "build for the CPU"),
        ("580.65.06", "13.0", "no GPU"),
    ],
)
def test_a_driver_that_cannot_be_used_is_a_problem(
    driver: str, cuda: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "version"
    file.write_text(DRIVER.format(driver))
    assert driver_version(file.read_text()) == driver
    monkeypatch.setattr(health, "DRIVER_FILE", file)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = found("GPU")
    assert check.state == "problem"
    assert says in check.found


def test_a_check_that_fails_itself_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device) -> int:
        raise OSError("no such file")

    monkeypatch.setattr(health, "available_bytes", broken)
    assert found("memory").state == "problem"
