"""Advice follows from measured numbers, both ways at every branch; and the real thing runs on a small config."""

from __future__ import annotations

import copy
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from fledge.advise.command import advise
from fledge.advise.decide import decide, save_cost_s
from fledge.advise.measure import _speed, time_in_turns
from fledge.advise.measure_storage import whole_state
from fledge.advise.render import render, save_plot, settings_line
from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.core.machine import default_threads
from fledge.training.config import make_config


def speed(mode: str, ranks: int, fps: float, wobble: float = 0.0) -> dict[str, Any]:
    frames = 60_000.0  # an iteration of 2 s at 30,000 a second
    turns = [frames / fps * (1 + wobble * k) for k in (-1, 0, 1)]
    return {
        "iteration_s": frames / fps,
        "frames_per_second": fps,
        "p10": fps * 0.9,
        "p90": fps * 1.1,
        "turns": turns,
        "mode": mode,
        "ranks": ranks,
    }


def numbers() -> dict[str, Any]:
    """A machine on which nothing pays but compressed checkpoints."""
    row = {"durable_s": 0.05}
    levels = {
        "level 0": {**row, "level": 0, "bytes": 1_000_000, "cpu_s": 0.005},
        "level 1": {**row, "level": 1, "bytes": 860_000, "cpu_s": 0.010},
        "level 9": {**row, "level": 9, "bytes": 840_000, "cpu_s": 0.100},
        "LZ4 around torch.save": {**row, "level": 9, "bytes": 990_000, "cpu_s": 0.02},
    }
    return {
        "machine": {"cpu": "made up", "cores": 2, "load_average": 0.0},
        "settings": {
            "ranks": 2,
            "num_envs": 64,
            "rollout_steps": 64,
            "epochs": 4,
            "iterations": 100,
            "save_interval": 50,
            "rollout_save_interval": 0,
        },
        "phases": {"simulate_s": 0.5, "decide_s": 0.3, "learn_s": 1.2, "iteration_s": 2.0},
        "checkpoint": {
            "torch_save_bytes": 1_000_000,
            "torch_save_s": 0.03,
            "levels": levels,
            "gather_s": 0.001,
            "call_s": 0.0005,
            "fence_s": 0.0,
        },
        "archive": {
            "raw_bytes": 80_000_000,
            "lz4_bytes": 30_000_000,
            "levels": {
                "level 1": {"level": 1, "bytes": 20_000_000, "call_s": 0.02, "cpu_s": 0.3},
                "level 9": {"level": 9, "bytes": 15_000_000, "call_s": 0.02, "cpu_s": 2.0},
            },
        },
        "packed": {
            "rollout_bytes": 80_000_000,
            "raw_bytes": 60_000_000,
            "bytes": 5_000_000,
            "pack_s": 0.1,
            "decode_s": 0.05,
            "available_bytes": 8_000_000_000,
        },
        "stream": {
            "raw_bytes": 80_000_000,
            "bytes": 10_000_000,
            "pack_s": 0.2,
            "unpack_s": 0.15,
            "break_even_bytes_per_s": 200e6,
        },
        "actors": {
            "frames": 60_000.0,
            "bytes": 6_000_000.0,
            "raw_bytes": 30_000_000.0,
            "pack_s": 0.1,
            "unpack_s": 0.1,
            "again_s": 0.2,
            "learn_s": 0.7,
            "loopback_s": 0.01,
        },
        "decoding": {"one_s": 0.010, "pool_s": 0.008, "threads": 4, "cores": 2},
        "precision": {"fp32": [1.0, 1.1, 0.9], "bf16": [2.0, 2.2, 1.8], "device": "cpu"},
        "modes": {
            "sync, 2 ranks": speed("sync", 2, 30_000),
            "halves, 2 ranks": speed("halves", 2, 29_000),
            "pipelined, 2 ranks": speed("pipelined", 2, 28_000),
            "sync, 1 rank": speed("sync", 1, 20_000),
            "halves, 1 rank": speed("halves", 1, 24_000),
            "pipelined, 1 rank": speed("pipelined", 1, 25_000),
        },
    }


def branch(result: dict[str, Any], words: str) -> dict[str, Any]:
    return next(b for b in result["branches"] if words in b["question"])


def test_bf16_is_advised_only_for_a_clear_gain() -> None:
    given = numbers()
    result = decide(given, 0.02)
    assert result["config"]["ppo.precision"] == "fp32"
    assert "0.50 times the speed" in branch(result, "bf16")["because"]
    given["precision"]["bf16"] = [0.5, 0.6, 0.55]
    assert decide(given, 0.02)["config"]["ppo.precision"] == "bf16"
    given["precision"]["bf16"] = [0.95, 0.99, 0.9]  # 5 %
    assert decide(given, 0.02)["config"]["ppo.precision"] == "fp32"
    given["precision"]["bf16"] = [0.8, 1.2, 0.8]  # fast, but not in every turn
    assert decide(given, 0.02)["config"]["ppo.precision"] == "fp32"


def test_the_plain_machine_gets_the_plain_settings() -> None:
    result = decide(numbers(), 0.02)
    assert result["config"] == {
        "compress_checkpoint": True,
        "save_compression_level": 1,  # within 3 % of level 9, and ten times cheaper
        "save_interval": 5,  # 10 s
        "rollout_save_interval": 0,
        "ranks": 2,
        "collect.mode": "sync",
        "ppo.precision": "fp32",
    }


def test_the_interval_goes_by_the_iteration_of_the_way_that_is_advised() -> None:
    given = numbers()
    fast = given["modes"]["pipelined, 2 ranks"] = speed("pipelined", 2, 60_000)
    result = decide(given, 0.02)
    assert result["config"]["collect.mode"] == "pipelined"
    assert result["config"]["save_interval"] == math.ceil(10 / fast["iteration_s"])


def test_an_archive_is_priced_at_the_level_that_is_advised() -> None:
    given = numbers()
    given["settings"]["rollout_save_interval"] = 2
    config = decide(given, 0.02)["config"]
    assert config["rollout_compression_level"] == 1
    assert config["rollout_save_interval"] == math.ceil(0.32 / (0.02 * given["modes"]["sync, 2 ranks"]["iteration_s"]))


def test_more_ranks_than_cores_are_no_faster_than_the_cores() -> None:
    cores, run = default_threads(), SimpleNamespace(frames_per_iteration=100)
    loops = [SimpleNamespace(run=run, mode="sync", ranks=ranks) for ranks in (cores, 8 * cores)]
    one, many = (_speed([1.0, 1.0], loop) for loop in loops)  # type: ignore[arg-type]
    assert many["frames_per_second"] == one["frames_per_second"] == 100 * cores
    assert many["iteration_s"] == 8.0


def test_a_checkpoint_of_all_ranks_is_measured() -> None:
    loop = SimpleNamespace(ranks=3, run=SimpleNamespace(state_dict=lambda: {"model": 1, "ranks": [{"rng": [1, 2]}]}))
    state = whole_state(loop)  # type: ignore[arg-type]
    assert state["ranks"] == [{"rng": [1, 2]}] * 3
    assert state["ranks"][0] is not state["ranks"][1]  # memory of its own, as each rank's is


def test_all_ways_take_turns() -> None:
    order: list[str] = []

    def loop(name: str) -> Any:
        def turn() -> float:
            order.append(name)
            return float(len(order))

        return SimpleNamespace(turn=turn, seconds=[(1.0, 1.0, 1.0)])

    loops = {name: loop(name) for name in "abc"}
    times = time_in_turns(loops, 0.0)
    assert "".join(order) == "abc" * 4  # once to warm up, not counted
    assert times == {"a": [4.0, 7.0, 10.0], "b": [5.0, 8.0, 11.0], "c": [6.0, 9.0, 12.0]}
    assert loops["a"].seconds == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["device=cuda"], "no CUDA device"),
        (
            ["env.num_envs=6", "ranks=2"],
            "must be a multiple of 4, so that each of the 2 ranks can collect in two halves",
        ),
        (["--picture", "x.foo"], "must end in .png"),
        (["navigation", "algo=sac"], "algo=ppo"),
    ],
)
def test_misuse_is_told_before_anything_is_measured(words: list[str], said: str) -> None:
    if "device=cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    result = CliRunner().invoke(main, ["advise", *words])
    assert result.exit_code == 2
    assert said in result.output


def test_checkpoints_that_do_not_shrink_are_stored_raw() -> None:
    given = numbers()
    for level in ("level 1", "level 9"):
        given["checkpoint"]["levels"][level]["bytes"] = 960_000
    result = decide(given, 0.02)
    assert not branch(result, "checkpoints save space")["yes"]
    assert result["config"]["compress_checkpoint"] is False
    assert "save_compression_level" not in result["config"]


def test_a_denser_level_is_taken_where_it_is_much_smaller() -> None:
    given = numbers()
    given["checkpoint"]["levels"]["level 9"]["bytes"] = 500_000
    assert decide(given, 0.02)["config"]["save_compression_level"] == 9


def test_a_dear_checkpoint_is_taken_less_often() -> None:
    given = numbers()
    given["checkpoint"]["gather_s"] = 2.0
    result = decide(given, 0.02)
    cost = save_cost_s(given, "level 1")
    interval = result["config"]["save_interval"]
    assert not branch(result, "stay within")["yes"]
    assert cost / (interval * 2.0) <= 0.02 < cost / ((interval - 1) * 2.0)
    assert decide(given, 0.2)["config"]["save_interval"] < interval


def test_archives_are_made_only_when_asked_for_and_no_more_often_than_the_budget_allows() -> None:
    given = numbers()
    assert decide(given, 0.02)["config"]["rollout_save_interval"] == 0
    given["settings"]["rollout_save_interval"] = 2
    assert decide(given, 0.02)["config"]["rollout_save_interval"] == 8  # 0.32 s of 16 s
    given["settings"]["rollout_save_interval"] = 40
    assert decide(given, 0.02)["config"]["rollout_save_interval"] == 40


@pytest.mark.parametrize(
    ("available", "decode", "yes"), [(8e9, 0.05, False), (3e8, 0.05, True), (3e8, 0.5, False), (0, 0.05, False)]
)
def test_scheme_c_needs_scarce_memory_and_cheap_decoding(available: float, decode: float, yes: bool) -> None:
    given = numbers()
    given["packed"] |= {"available_bytes": available, "decode_s": decode}
    assert branch(decide(given, 0.02), "C:")["yes"] is yes


@pytest.mark.parametrize(
    ("name", "fps", "wobble", "mode", "ranks"),
    [
        ("halves, 2 ranks", 31_500, 0.0, "halves", 2),
        ("halves, 2 ranks", 30_500, 0.0, "sync", 2),  # under 3 %
        ("halves, 1 rank", 33_000, 0.0, "halves", 1),
        ("pipelined, 2 ranks", 34_000, 0.0, "pipelined", 2),
        ("pipelined, 2 ranks", 32_000, 0.0, "sync", 2),  # not worth the lag
        ("halves, 2 ranks", 31_000, 0.3, "sync", 2),  # within the noise
    ],
)
def test_the_way_to_collect_follows_the_speeds(name: str, fps: float, wobble: float, mode: str, ranks: int) -> None:
    given = numbers()
    given["modes"][name] = speed(name.split(",")[0], ranks, fps, wobble)
    config = decide(given, 0.02)["config"]
    assert (config["collect.mode"], config["ranks"]) == (mode, ranks)


@pytest.mark.parametrize(("learn_s", "yes"), [(0.7, True), (1.5, True), (1.6, False), (3.0, False)])
def test_actors_pay_where_the_learner_is_faster_without_collecting(learn_s: float, yes: bool) -> None:
    """Alone 30,000 decisions/s; without collecting 60,000 in learn_s + 0.1 s to decode + 0.2 s to evaluate again."""
    given = numbers()
    given["actors"]["learn_s"] = learn_s
    found = branch(decide(given, 0.02), "actors")
    assert found["yes"] is yes
    assert found["numbers"]["most"] == pytest.approx(60_000 / (learn_s + 0.3))
    assert found["numbers"]["least_bytes_per_s"] == pytest.approx(100 * 1.1 * 30_000)


def test_deciding_changes_nothing_and_gives_json() -> None:
    given = numbers()
    before = copy.deepcopy(given)
    result = decide(given, 0.02)
    assert given == before
    assert json.loads(json.dumps(result)) == result


def test_the_settings_are_one_line_on_a_narrow_terminal() -> None:
    result = {"budget": 0.02, "measured": numbers(), **decide(numbers(), 0.02)}
    console = Console(file=io.StringIO(), width=40)
    console.print(settings_line(result), soft_wrap=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == f"Set: {' '.join(f'{key}={value}' for key, value in result['config'].items())}\n"
    assert len(text) > 40


def test_advice_can_be_printed_and_drawn(tmp_path: Path) -> None:
    result = {"budget": 0.02, "measured": numbers(), **decide(numbers(), 0.02)}
    console = Console(file=io.StringIO(), width=160)
    console.print(*render(result), sep="\n")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for question in result["branches"]:
        assert question["question"] in text
    save_plot(result, tmp_path / "new" / "advice.png")
    assert (tmp_path / "new" / "advice.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("budget", "seconds"), [(0.0, 1.0), (1.0, 1.0), (0.02, 0.0)])
def test_impossible_budgets_are_refused(budget: float, seconds: float) -> None:
    with pytest.raises(ConfigError, match="must"):
        advise(make_config("navigation"), budget, seconds)


def test_only_ppo_is_advised_on() -> None:
    with pytest.raises(ConfigError, match="algo=ppo"):
        advise(make_config("navigation", "sac"))


@pytest.mark.slow
def test_the_advisor_measures_a_small_training(tmp_path: Path) -> None:
    words = ["env.num_envs=16", "ppo.rollout_steps=8", "ppo.minibatch=64", "ranks=2", "env.num_maps=1"]
    cfg = make_config("navigation", "fast", words)
    said: list[str] = []
    result = advise(cfg, seconds=0.1, on_progress=said.append)
    assert json.loads(json.dumps(result))["config"] == result["config"]
    measured = result["measured"]
    assert {row["ranks"] for row in measured["modes"].values()} == {1, 2}
    assert measured["checkpoint"]["levels"]["level 1"]["bytes"] > 1000
    assert measured["packed"]["bytes"] < measured["packed"]["raw_bytes"]
    assert 0 < measured["actors"]["bytes"] < measured["actors"]["raw_bytes"]
    assert measured["actors"]["loopback_s"] > 0
    assert said
    save_plot(result, tmp_path / "advice.png")


@pytest.mark.parametrize(("gigabytes", "yes"), [(4.0, True), (12.0, False), (0.0, False)])
def test_the_tree_asks_for_less_than_8_gb_of_device_memory(gigabytes: float, yes: bool) -> None:
    measured = numbers()
    measured["packed"]["device_bytes"] = gigabytes * 1e9
    branches = {branch["question"]: branch for branch in decide(measured, 0.01)["branches"]}
    asked = branches["Does the device have less than 8 GB of memory?"]
    assert asked["yes"] is yes
    assert (f"{gigabytes} GB" in asked["because"]) is bool(gigabytes)
