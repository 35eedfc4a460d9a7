"""Every kernel compiles for GPUs, and needs no more registers and local memory than kernels.json says."""

from __future__ import annotations

import json

import pytest

from tests.device import kernels

SLOW = ("spacetime.", "planner.kernel", "perception.kernels", "pedestrians")  # take 135 of 156 s to compile


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads(kernels.TABLE.read_text())


def test_the_table_has_every_kernel_of_every_module(table: dict[str, dict[str, dict[str, int]]]) -> None:
    names = {
        f"{name.removeprefix('fledge.')}.{key}" for name, module in kernels.modules().items() for key in module.kernels
    }
    for arch in kernels.ARCHS:
        assert set(table[f"sm_{arch}"]) == names, "run python -m tests.device.kernels --write"


def test_most_kernels_compile_for_the_oldest_gpu(table: dict[str, dict[str, dict[str, int]]]) -> None:
    quick = tuple(name for name in kernels.modules() if not any(part in name for part in SLOW))
    found = kernels.measure((75,), quick)["sm_75"]
    assert len(found) > 35
    assert not (wrong := kernels.growth(found, table["sm_75"])), "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("arch", kernels.ARCHS)
def test_every_kernel_compiles_and_needs_no_more_than_before(
    arch: int, table: dict[str, dict[str, dict[str, int]]]
) -> None:
    found = kernels.measure((arch,))[f"sm_{arch}"]
    assert found.keys() == table[f"sm_{arch}"].keys()
    assert not (wrong := kernels.growth(found, table[f"sm_{arch}"])), "\n".join(wrong)


def test_growth_beyond_the_margin_is_told_with_the_kernels_name() -> None:
    before = {"a.fly": {"registers": 64, "stack": 0}, "a.scan": {"registers": 255, "stack": 1024}}
    assert not kernels.growth(before, before)
    assert not kernels.growth({"a.fly": {"registers": 72, "stack": 64}}, before)
    assert (
        "a.fly needs 80 registers, but needed 64" in kernels.growth({"a.fly": {"registers": 80, "stack": 0}}, before)[0]
    )
    assert "a.scan needs 2048 stack" in kernels.growth({"a.scan": {"registers": 255, "stack": 2048}}, before)[0]
    assert "a.new is not in kernels.json" in kernels.growth({"a.new": {"registers": 8, "stack": 0}}, before)[0]
