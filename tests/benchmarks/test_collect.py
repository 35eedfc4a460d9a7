"""The collectors' benchmark: small runs of the real thing, and wrong collectors that it must catch."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import collect as bench
from benchmarks import collect_parity
from fledge.collect import HalvesDataCollector
from fledge.collect.packed import PackedTensor
from fledge.collect.sources import FrozenPolicy
from fledge.core.errors import FledgeError, InputError
from fledge.training.config import TrainConfig

SMALL: dict[str, Any] = {"rounds": 2, "num_envs": 32, "rollout_steps": 8, "threads": 1, "seed": 3}


full_config = bench.bench_config


@pytest.fixture(scope="module", autouse=True)
def few_maps() -> Iterator[None]:
    """Two maps instead of 64, which take longer to make than the rest of these tests."""

    def config(*args: int) -> TrainConfig:
        cfg = full_config(*args)
        cfg.env.num_maps = 2
        return cfg

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "bench_config", config)
        yield


@pytest.fixture(scope="module")
def result(few_maps: None) -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found = bench.run(**SMALL)
    found["threads_after"] = torch.get_num_threads()
    torch.set_num_threads(before)
    return found


def test_a_run_returns_machine_settings_parity_and_all_collectors(result: dict[str, Any]) -> None:
    assert set(result) == {"machine", "settings", "parity", "collectors", "compression", "memory", "threads_after"}
    assert result["threads_after"] == 3  # timing leaves torch's thread count as it was
    assert list(result["collectors"]) == ["synchronous", "pipelined", "halves", "compressed"]
    assert result["settings"]["num_envs"] == 32
    assert json.loads(json.dumps(result)) == result


def test_every_collector_was_checked_on_many_values(result: dict[str, Any]) -> None:
    assert set(result["parity"]) == {"pipelined", "halves", "compressed"}
    decisions = collect_parity.DRONES * collect_parity.STEPS * collect_parity.ITERATIONS
    for row in result["parity"].values():
        assert row["values"] > 400 * decisions


def test_figures_of_a_row_belong_together(result: dict[str, Any]) -> None:
    rows = result["collectors"]
    assert rows["synchronous"]["ratio"] == rows["synchronous"]["ratio_lowest"] == 1
    for row in rows.values():
        assert 0 < row["slowest"] <= row["decisions_per_second"] <= row["fastest"]
        assert row["ratio_lowest"] <= row["ratio"] <= row["ratio_highest"]
        assert row["share_collect"] + row["share_learn"] == pytest.approx(1, abs=0.002)
    packed = result["compression"]
    assert packed["ratio"] == pytest.approx(packed["bytes_before"] / packed["bytes_after"], abs=0.01)


def test_a_copied_rollout_takes_twice_the_memory(result: dict[str, Any]) -> None:
    assert result["memory"]["copied_td_bytes"] == 2 * result["memory"]["same_td_bytes"] > 0


def test_rendering_shows_every_collector_and_the_ratios(result: dict[str, Any]) -> None:
    console = Console(width=80, file=io.StringIO())
    for part in bench.render(result):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for label in bench.LABELS.values():
        assert label in text
    for row in result["collectors"].values():
        assert f"{row['ratio']:.2f}" in text
    assert "…" not in text  # it fits


def wrong_pipeline(patch: pytest.MonkeyPatch) -> None:
    """The batch in the air is flown with weights older by one more batch."""
    right, skipped = FrozenPolicy.take, iter(range(10**9))
    patch.setattr(FrozenPolicy, "take", lambda self, weights=None: right(self, weights) if next(skipped) != 2 else None)


def wrong_halves(patch: pytest.MonkeyPatch) -> None:
    """The second half's values are a little off."""
    right, turns = HalvesDataCollector._act, iter(range(10**9))

    def act(self: Any, slot: Any, mean: Any, std: Any, *others: Any) -> None:
        right(self, slot, mean, std * (1 + 1e-6 * (next(turns) % 2)), *others)

    patch.setattr(HalvesDataCollector, "_act", act)


def wrong_compression(patch: pytest.MonkeyPatch) -> None:
    """A codec that loses a bit."""
    right = PackedTensor.unpack
    patch.setattr(PackedTensor, "unpack", lambda self, envs=None: right(self, envs) * (1 + 1e-6))


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [(wrong_pipeline, "pipelined"), (wrong_halves, "halves"), (wrong_compression, "compressed")],
)
def test_nothing_is_timed_when_a_collector_is_wrong(monkeypatch: pytest.MonkeyPatch, break_it: Any, kind: str) -> None:
    break_it(monkeypatch)
    monkeypatch.setattr(bench, "_time", lambda *_: pytest.fail("timed"))
    with pytest.raises(FledgeError, match=f"{kind}.*Nothing was timed"):
        bench.run(**SMALL)


def test_misuse_is_refused() -> None:
    with pytest.raises(InputError, match="even"):
        bench.run(num_envs=3)
    with pytest.raises(InputError, match="rounds is 0"):
        bench.run(rounds=0)
