"""The training benchmark compares results before it times anything."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import train as bench
from fledge.core.errors import FledgeError, InputError
from fledge.tasks.navigation.networks.navrl import NavRLActorCritic

pytest.importorskip("torchrl")


def test_both_designs_compute_the_same_outputs_and_loss() -> None:
    parity = bench.check_parity(seed=0)
    assert parity["network_max_difference"] < 1e-5
    assert parity["loss_fledge"] == pytest.approx(parity["loss_torchrl"], rel=1e-3)


def test_a_wrong_network_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NavRLActorCritic.from_navrl

    def wrong(policy: object) -> NavRLActorCritic:
        twin = right(policy)  # type: ignore[arg-type]
        with torch.no_grad():
            twin.lidar.linear.weight.mul_(1.01)
        return twin

    monkeypatch.setattr(NavRLActorCritic, "from_navrl", wrong)
    with pytest.raises(FledgeError, match="disagree"):
        bench.check_parity(seed=0)


def fake_run(monkeypatch: pytest.MonkeyPatch, rates: dict[str, list[float]], **options: int) -> tuple[Any, list[str]]:
    """The benchmark with designs of known speed, and the order in which they took their turns."""
    order: list[str] = []
    left = {name: iter(values) for name, values in rates.items()}

    def turn(name: str) -> bench.Turn:
        order.append(name)
        rate = next(left[name])
        return {"decisions_per_second": rate, "collect_s": 1e3 / rate, "learn_s": 2e3 / rate}

    @contextmanager
    def torchrl(num_envs: int, seed: int) -> Iterator[Any]:
        yield lambda threads, iterations: turn(f"torchrl_{threads}")

    names = {"navrl": "fledge", "fast": "fast"}
    monkeypatch.setattr(bench, "check_parity", lambda seed: {})
    monkeypatch.setattr(bench, "torchrl_loop", torchrl)
    monkeypatch.setattr(bench, "time_fledge", lambda preset, *_: turn(names[preset]))
    monkeypatch.setattr(bench, "default_threads", lambda: 4)
    monkeypatch.setattr(bench, "matmul_peak", lambda: 3e11)
    return bench.run(num_envs=8, **options), order


RATES = {
    "fledge": [90.0, 100.0, 140.0],
    "torchrl_1": [50.0, 60.0, 70.0],
    "torchrl_4": [30.0, 40.0, 140.0],
    "fast": [500.0, 600.0, 700.0],
}


def test_the_designs_take_turns_and_the_better_number_of_threads_is_the_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, order = fake_run(monkeypatch, RATES, turns=3)
    assert order == ["fledge", "torchrl_1", "torchrl_4", "fast"] * 3
    assert result["baseline"] == "torchrl_1"  # by the median; the other was quicker once
    assert result["ratio"]["turns"] == pytest.approx([90 / 50, 100 / 60, 2], abs=1e-3)  # each with its neighbour
    assert result["ratio"]["median"] == pytest.approx(1.8)
    other = result["designs"]["torchrl_4"]["fledge_faster_by"]
    assert other["whole"]["median"] == pytest.approx(2.5)
    assert other["learning"]["turns"] == pytest.approx([3, 2.5, 1])
    assert json.loads(json.dumps(result)) == result


def test_the_tables_show_both_baselines_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = fake_run(monkeypatch, RATES, turns=3)
    console = Console(width=80, file=io.StringIO())
    console.print(*bench.render(result), sep="\n")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("TorchRL, torch threads: 1", "TorchRL, torch threads: 4", "1.80 (1.73-1.90)", "1 (the better)"):
        assert word in text
    assert "…" not in text


def test_no_turns_are_refused() -> None:
    with pytest.raises(InputError, match="turns is 0"):
        bench.run(turns=0)


@pytest.mark.slow
def test_the_real_thing_runs() -> None:
    result = bench.run(turns=1, iterations=1, num_envs=32)
    assert {"fledge", "torchrl_1", "fast"} <= set(result["designs"])
    assert all(row["decisions_per_second"]["median"] > 0 for row in result["designs"].values())
