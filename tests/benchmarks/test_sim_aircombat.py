"""`python -m benchmarks sim task=aircombat`: small runs of the real thing, and wrong baselines that it must catch."""

import functools
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from benchmarks import sim
from benchmarks.baselines.aircombat import benchmark
from benchmarks.baselines.aircombat.numpy_duel import NumpyDuel
from benchmarks.baselines.aircombat.torch_duel import TorchDuel
from benchmarks.baselines.shares import Shares
from benchmarks.commands import main
from fledge.core.errors import ConfigError, FledgeError


@pytest.fixture(scope="module", autouse=True)
def short_warm_up() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim, "TURNS", 2)
        patch.setattr(benchmark, "WARM_UP", 20)
        patch.setattr(benchmark, "CALLS", 8)
        yield


@pytest.fixture(scope="module")
def result(short_warm_up: None) -> dict[str, Any]:
    return sim.run("aircombat", num_envs=200, threads=2, seconds=0.02, sizes=(10, 40), seed=3)


@pytest.fixture
def flight() -> Iterator[Any]:
    begun = benchmark.DuelBenchmark().begin(60, 2, seed=4)
    yield begun
    begun.close()


def test_candidates_fly_the_same_fights_and_are_counted_in_physics_steps(result: dict[str, Any]) -> None:
    assert list(result["comparison"]["one"]) == ["fledge", "numpy", "torch"]
    assert list(result["comparison"]["all"]) == ["fledge", "numpy", "torch", "torch in shares"]
    for row in result["comparison"]["one"].values():
        assert row["env_steps_per_second"] == pytest.approx(200 * 10 / row["median_ms"] * 1e3, rel=0.01)
        assert row["us_per_duel_step"] == pytest.approx(1e3 * row["median_ms"] / 2000, rel=0.01)
    for parity in result["parity"].values():
        assert parity["duels"] == 200
        assert parity["steps"] == 80
        assert all(verdict["ok"] for name in ("numpy", "torch") for verdict in parity[name].values())
    assert result["figures"]["missiles_per_duel"] > 0.3
    assert [row["num_envs"] for row in result["sizes"]] == [10, 40]
    json.dumps(result)


def test_the_tables_fit_80_columns(result: dict[str, Any]) -> None:
    console = Console(width=80, file=io.StringIO())
    large = {
        "num_envs": 100_000,
        "median_ms": 346.2,
        "p10_ms": 326.4,
        "p90_ms": 1606.0,
        "env_steps_per_second": 5_227_025,
    }
    for part in sim.render(result | {"sizes": [*result["sizes"], result["sizes"][0] | large]}):
        console.print(part)
    text = console.file.getvalue()
    for word in (
        "fledge",
        "torch in shares",
        "fighters, m",
        "outcome",
        "µs/duel",
        "missiles per duel",
        "ms a decision",
    ):
        assert word in text
    assert "…" not in text


def test_a_flight_goes_back_to_the_moment_at_which_it_began(flight: Any) -> None:
    before, outs = flight.snapshot(), []
    for _ in range(2):
        flight.go_back()
        for call in range(3):
            flight.step(call)
        outs.append(flight.out.clone())
    assert bool((outs[0] == outs[1]).all())
    flight.go_back()
    assert (flight.snapshot().pos == before.pos).all()


@pytest.mark.parametrize("make", [NumpyDuel, TorchDuel], ids=lambda make: make.__name__)
def test_shares_fly_all_duels_as_one_simulation_does(flight: Any, make: Any) -> None:
    native = torch.Tensor.numpy if make is NumpyDuel else lambda tensor: tensor
    make, start = functools.partial(make, benchmark.bench_config(1)), flight.snapshot()
    whole, shares = make(start), Shares(make, 3, start)
    for given in flight.arguments(native):
        want, got = whole.step(*given), shares.step(*given)
    for key in ("pos", "missile_speed", "outcome"):
        torch.testing.assert_close(torch.as_tensor(got[key]), torch.as_tensor(want[key]))


class Strong(NumpyDuel):
    """Fighters with a little more thrust."""

    def physics_step(self, rudder: Any, throttle: Any) -> None:
        super().physics_step(rudder, throttle)
        self.now.speed += 0.1


class Wide(TorchDuel):
    """A duel in which no missile hits."""

    def judge(self, on: Any, fight: Any, victim: Any) -> None:
        super().judge(on, fight[:0], victim[:0])


@pytest.mark.parametrize(("name", "make", "key"), [("numpy", Strong, "fighters, m"), ("torch", Wide, "outcome")])
def test_a_wrong_baseline_is_refused_by_naming_what_differs(name: str, make: Any, key: str) -> None:
    flight = benchmark.DuelBenchmark().begin(400, 2, seed=4)
    native = torch.Tensor.numpy if name == "numpy" else lambda tensor: tensor
    with pytest.raises(FledgeError, match=f"The {name} baseline and the simulator disagree on {key}"):
        flight.check({name: (functools.partial(make, benchmark.bench_config(1)), native)})
    flight.close()


def test_a_task_without_a_benchmark_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"Task 'toy' has no simulation benchmark; choose one of navigation, aircombat\."
    ):
        sim.run("toy")


def test_the_command_takes_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    monkeypatch.setattr(sim, "run", lambda **options: asked.update(options) or {})
    for words, task in (([], "navigation"), (["task=aircombat"], "aircombat"), (["aircombat"], "aircombat")):
        done = CliRunner().invoke(main, ["sim", *words, "--json"])
        assert done.exit_code == 0, done.output
        assert asked["task"] == task
        assert asked["num_envs"] is None
    wrong = CliRunner().invoke(main, ["sim", "task=aircombat", "task=navigation"])
    assert wrong.exit_code == 2
    assert "measures one task" in wrong.output
