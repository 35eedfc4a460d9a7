"""How many ranks a run gets by itself, and where each of them is."""

import pytest
import torch

from fledge.train import ranks


@pytest.mark.parametrize(
    ("cores", "num_envs", "expected"),
    [
        (1, 8, 1),
        (2, 1024, 2),
        (3, 9, 3),
        (3, 1024, 2),
        (6, 7, 1),
        (6, 1024, 4),
        (10, 1024, 8),
        (12, 1024, 8),
        (14, 1024, 8),
        (20, 1024, 16),
        (24, 1024, 16),
    ],
)
def test_ranks_share_the_envs_out_evenly_on_any_number_of_cores(
    cores: int, num_envs: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "default_threads", lambda: cores)
    assert ranks.default_ranks("cpu", num_envs) == expected


@pytest.mark.parametrize(
    ("device", "gpus", "expected"), [("auto", 4, 4), ("cuda", 3, 2), ("cuda:1", 4, 1), ("auto", 0, 8)]
)
def test_on_gpus_there_is_a_rank_for_each(
    device: str, gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "default_threads", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert ranks.default_ranks(device, 1024) == expected


@pytest.mark.parametrize(("environ", "place"), [({}, (0, 1, 0)), ({"RANK": "9", "LOCAL_RANK": "1"}, (9, 1, 1))])
def test_a_rank_is_told_its_place_by_the_environment(
    environ: dict[str, str], place: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if environ:
        monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    with ranks.joined_ranks(1, "cpu", []) as found:
        assert (found.rank, found.size, found.local) == place
