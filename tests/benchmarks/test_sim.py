"""The simulator's benchmark: small runs of the real thing, and wrong baselines that it must catch."""

import dataclasses
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks import sim, tables
from benchmarks.baselines.navigation import benchmark
from benchmarks.baselines.navigation.numpy_sim import NumpySim
from benchmarks.baselines.navigation.parity import TOLERANCES, check_parity, snapshot_of
from benchmarks.baselines.navigation.plain_step import Snapshot
from benchmarks.baselines.shares import Shares
from benchmarks.sim_benchmark import SimBenchmark
from fledge.core.errors import FledgeError, InputError
from fledge.tasks.navigation.config import RewardKind
from fledge.tasks.navigation.env import NavigationEnv

MAPS = 4  # instead of 64, which take longer to make than the rest of these tests
full_config = benchmark.bench_config


@pytest.fixture(scope="module", autouse=True)
def few_maps_and_turns() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "bench_config", lambda n: dataclasses.replace(full_config(n), num_maps=MAPS))
        patch.setattr(sim, "TURNS", 2)
        yield


@pytest.fixture(scope="module")
def result(few_maps_and_turns: None) -> dict[str, Any]:
    return sim.run(num_envs=64, threads=2, seconds=0.02, sizes=(16, 64), seed=3)


@pytest.fixture
def flying_env() -> Any:
    """A small env with its drones at speed, and its buffers."""
    env = NavigationEnv(benchmark.bench_config(64), seed=5)
    out = env.make_buffers()
    env.reset(out=out)
    for _ in range(60):
        env.step(torch.tensor(benchmark.ACTION).repeat(64, 1), out=out)
    yield env, out
    env.close()


def test_a_run_returns_machine_parity_comparison_ratios_and_sizes(result: dict[str, Any]) -> None:
    assert set(result) == {"machine", "settings", "parity", "figures", "comparison", "sizes"}
    assert {"cpu", "cores", "python", "torch", "warp", "numpy"} <= set(result["machine"])
    assert [row["num_envs"] for row in result["sizes"]] == [16, 64]


def test_one_thread_is_compared_with_one_and_all_with_all(result: dict[str, Any]) -> None:
    one, every = result["comparison"]["one"], result["comparison"]["all"]
    assert list(one) == ["fledge", "numpy", "torch"]
    assert list(every) == ["fledge", "numpy", "torch", "torch in shares"]
    assert {row["threads"] for row in one.values()} == {1}
    assert {row["threads"] for row in every.values()} == {2}
    assert all(row["cores_used"] > 0 for row in (*one.values(), *every.values()))


def test_the_task_is_navrls() -> None:
    cfg = full_config(1024)
    assert (cfg.static_obstacles, cfg.moving_obstacles, cfg.num_maps, cfg.decimation) == (350, 80, 64, 1)
    assert (cfg.reward.kind, cfg.reward.height, cfg.success_ends_episode) == (RewardKind.navrl, 8.0, False)


def test_a_result_survives_json(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result)) == result


def test_figures_of_a_row_belong_together(result: dict[str, Any]) -> None:
    for row, drones in [
        *((r, 64) for group in result["comparison"].values() for r in group.values()),
        *((r, r["num_envs"]) for r in result["sizes"]),
    ]:
        assert 0 < row["p10_ms"] <= row["median_ms"] <= row["p90_ms"]
        assert row["repeats"] >= 1
        assert row["env_steps_per_second"] == pytest.approx(1e3 * drones / row["median_ms"], rel=0.01)
        assert row["us_per_drone_step"] == pytest.approx(1e3 * row["median_ms"] / drones, rel=0.01)


def test_ratios_are_of_turns_side_by_side(result: dict[str, Any]) -> None:
    for group in result["comparison"].values():
        for name, row in group.items():
            faster = row["fledge_faster_by"]
            assert len(faster["turns"]) == 2
            assert 0 < faster["low"] <= faster["median"] <= faster["high"]
            assert name != "fledge" or set(faster["turns"]) == {1.0}


def test_shares_fly_all_drones_as_one_simulation_does(flying_env: Any) -> None:
    env, _ = flying_env
    start, action = snapshot_of(env), np.random.default_rng(0).random((64, 3), dtype=np.float32)
    crowd = [env.bank.tensors["trail"][-1].numpy(), env.bank.tensors["vel"].numpy()]
    whole, shares = NumpySim(start), Shares(NumpySim, 3, start)
    for _ in range(2):
        want, got = whole.step(action, *crowd), shares.step(action, *crowd)
        assert {key: len(value) for key, value in got.items()} == dict.fromkeys(want, 64)
        for key, value in want.items():
            np.testing.assert_allclose(got[key], value, atol=1e-5)
    shares.load(start)
    np.testing.assert_allclose(
        shares.step(action, *crowd)["state"], NumpySim(start).step(action, *crowd)["state"], atol=1e-5
    )


def test_memory_counts_the_grids_of_all_maps_and_grows_with_drones(result: dict[str, Any]) -> None:
    small, large = (row["memory_bytes"] for row in result["sizes"])
    assert small["maps"] == large["maps"]
    assert MAPS * 500 * 500 < small["maps"] < 1.1 * MAPS * 500 * 500
    assert large["drones"] == pytest.approx(4 * small["drones"], rel=0.01)
    # at least the observation, twice (obs and final_obs), in the caller's buffers
    assert small["drones"] > 16 * 2 * 4 * (144 + 8 + 3 + 50)
    assert small["per_drone"] == round((small["maps"] + small["drones"]) / 16)


def test_parity_is_reported_with_its_tolerances_for_both_baselines(result: dict[str, Any]) -> None:
    one, every = result["parity"]["one"], result["parity"]["all"]
    for parity in (one, every):
        assert parity["steps"] >= 10
        assert parity["still_flying"] > 32
    for verdicts in (one["numpy"], one["torch"], every["numpy"], every["torch"], every["torch in shares"]):
        assert set(verdicts) == set(TOLERANCES)
        assert all(verdict["ok"] for verdict in verdicts.values())
        assert verdicts["state"]["max_difference"] < 1e-4
    assert one["numpy"]["lidar"]["share_outside"] <= 1e-3


def test_rendering_shows_every_candidate_and_size(result: dict[str, Any]) -> None:
    console = Console(width=80, file=io.StringIO())
    large = {
        "num_envs": 16384,
        "median_ms": 606.2,
        "p10_ms": 526.4,
        "p90_ms": 1606.0,
        "env_steps_per_second": 1_227_025,
    }
    sizes = [*result["sizes"], result["sizes"][0] | large]
    for part in sim.render(result | {"sizes": sizes}):
        console.print(part)
    text = console.file.getvalue()
    ratios = [row["fledge_faster_by"] for group in result["comparison"].values() for row in group.values()]
    shown = [tables.shown(ratio) for k, ratio in enumerate(ratios) if k not in (0, 3)]  # of the baselines
    for word in ("fledge", "numpy", "torch in shares", "lidar", "terminated", "µs/drone", *shown):
        assert word in text
    assert "…" not in text  # it fits


def test_progress_is_told_part_by_part_and_torchs_thread_count_stays_as_it_was() -> None:
    before, lines = torch.get_num_threads(), list[str]()
    sim.run(num_envs=8, threads=before + 1, seconds=0.001, sizes=(8,), on_progress=lines.append)
    assert [line.split()[0] for line in lines] == ["warming", "warming", "checking", "timing", "timing"]
    assert torch.get_num_threads() == before


# ---- wrong baselines ---------------------------------------------------------------------------------------------------


class Upward(NumpySim):
    """Gravity a little off."""

    def fly(self, command: np.ndarray) -> None:
        super().fly(command)
        self.vel[:, 2] += np.float32(0.01)


class Skewed(NumpySim):
    """One result slightly wrong."""

    key = ""

    def step(self, *given: np.ndarray) -> dict[str, np.ndarray]:
        result = super().step(*given)
        if self.key == "terminated":
            result["terminated"] = result["terminated"] | (np.arange(len(self.pos)) % 16 == 0)
        elif self.key == "lidar":
            result["lidar"] = np.roll(result["lidar"], 1, axis=2)  # beams clockwise by one
        elif self.key == "dynamic_obstacle":
            result["dynamic_obstacle"] = result["dynamic_obstacle"] * np.float32(1.01)
        else:
            result["reward"] = result["reward"] + np.float32(0.01)
        return result


def wrong(key: str) -> type[Skewed]:
    return type(f"Wrong_{key}", (Skewed,), {"key": key})


@pytest.mark.parametrize(
    ("baseline", "key"),
    [(Upward, "state"), *((wrong(key), key) for key in ("lidar", "dynamic_obstacle", "reward", "terminated"))],
)
def test_a_wrong_baseline_is_refused_by_naming_what_differs(flying_env: Any, baseline: type, key: str) -> None:
    with pytest.raises(FledgeError, match=f"numpy baseline and the simulator disagree on {key}"):
        check_parity(*flying_env, {"numpy": (baseline, torch.Tensor.numpy)})


def test_a_baseline_that_gives_nan_is_refused(flying_env: Any) -> None:
    class Nan(NumpySim):
        def reward(self, *given: np.ndarray) -> np.ndarray:
            return super().reward(*given) * np.nan

    with pytest.raises(FledgeError, match="disagree on reward"):
        check_parity(*flying_env, {"numpy": (Nan, torch.Tensor.numpy)})


def test_nothing_is_timed_when_a_baseline_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("timed")

    wrong = dict(benchmark.NavigationBenchmark.baselines) | {"numpy": (Upward, torch.Tensor.numpy)}
    monkeypatch.setattr(benchmark.NavigationBenchmark, "baselines", wrong)
    monkeypatch.setattr(sim, "_time", never)
    with pytest.raises(FledgeError, match="Nothing was timed"):
        sim.run(num_envs=16, seconds=0.001, sizes=(16,))


def test_a_simulator_that_depends_on_its_threads_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sim._begin

    @contextmanager
    def begin(which: SimBenchmark, count: int, threads: int, seed: int) -> Iterator[Any]:
        with right(which, count, threads, seed) as flight:
            flight.out["reward"][0] += 1e-6 * threads
            yield flight

    monkeypatch.setattr(sim, "_begin", begin)
    with pytest.raises(FledgeError, match=r"one thread and all threads\. Nothing was timed"):
        sim.run(num_envs=16, threads=2, seconds=0.001, sizes=())


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="seconds is 0"):
        sim.run(seconds=0)


def test_a_snapshot_is_a_copy_that_flying_on_does_not_change(flying_env: Any) -> None:
    env, out = flying_env
    taken: Snapshot = snapshot_of(env)
    before = taken.pos.copy()
    env.step(torch.rand(64, 3), out=out)
    np.testing.assert_array_equal(taken.pos, before)
    for make, native in benchmark.NavigationBenchmark.baselines.values():
        baseline = make(taken)
        baseline.step(native(torch.rand(64, 3)), *(native(env.bank.tensors[k]) for k in ("origin", "vel")))
        np.testing.assert_array_equal(taken.pos, before)
        baseline.load(taken)
        np.testing.assert_array_equal(np.asarray(baseline.pos), before)
