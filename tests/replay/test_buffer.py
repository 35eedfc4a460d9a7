"""The buffer against a plain list of episodes: any adds, evictions and samples, in all layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.replay import DictReplayBuffer, episode_store
from tests.replay.plain import KEYS, OBS, PlainBuffer, check_batch, check_index, everything, make_episode

LAYOUTS = ["frame", "chunk", "episode"]
ENDS = st.sampled_from(["terminated", "truncated", "cut"])


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=20, deadline=None)
@given(
    max_size=st.integers(20, 90),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=14),
    ends=st.lists(ENDS, min_size=14, max_size=14),
    n_step=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
def test_any_history_gives_exactly_the_stored_frames(
    layout: str, max_size: int, lengths: list[int], ends: list[str], n_step: int, seed: int
) -> None:
    plain = PlainBuffer(max_size)
    with DictReplayBuffer(max_size, KEYS, layout=layout, n_step=n_step, gamma=0.9, seed=seed) as buffer:
        for number, length in enumerate(lengths):
            episode = make_episode(number + 1, length, ends[number])
            if length > max_size:
                with pytest.raises(InputError, match="split the episode"):
                    buffer.add(episode)
            else:
                buffer.add(episode)
                plain.add(episode)
            check_index(buffer, plain)
            if len(plain):
                check_batch(buffer.sample(7), plain, n_step, 0.9)
        if len(plain):
            whole = everything(buffer)
            assert whole["id"].tolist() == torch.cat([e["id"] for e in plain.episodes]).tolist()
            check_batch(whole, plain, n_step, 0.9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_choosing_stores_again_changes_no_frame(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_store, "MEASURE_FRAMES", 30)
    plain = PlainBuffer(100)
    with DictReplayBuffer(100, KEYS, layout=layout) as buffer:
        for number, length in enumerate([1, 2, 30, 20, 40, 30]):  # the first is untypical
            buffer.add(make_episode(number + 1, length))
            plain.add(make_episode(number + 1, length))
            check_index(buffer, plain)
            check_batch(everything(buffer), plain)
        assert buffer.measured


@pytest.mark.parametrize("cache_bytes", [0, 2_000, 10**6])
def test_a_cache_of_decoded_chunks_changes_nothing(cache_bytes: int) -> None:
    plain = PlainBuffer(120)
    with DictReplayBuffer(120, KEYS, layout="episode", cache_bytes=cache_bytes) as buffer:
        for number in range(8):
            buffer.add(make_episode(number + 1, 25))
            plain.add(make_episode(number + 1, 25))
            check_batch(buffer.sample(12), plain)
        for store in buffer.stores:
            assert store._cached == sum(a.nbytes for a in store._cache.values()) <= cache_bytes


def test_a_batch_decodes_each_chunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fledge.replay.stores.block import BlockStore

    decoded: list[int] = []
    decode = BlockStore.decode
    monkeypatch.setattr(BlockStore, "decode", lambda self, n, *a: decoded.append((id(self), n)) or decode(self, n, *a))
    with DictReplayBuffer(500, KEYS, layout="episode", decode_threads=1) as buffer:
        for number in range(3):
            buffer.add(make_episode(number + 1, 40))
        decoded.clear()
        buffer.sample(200)
        assert len(decoded) == len(set(decoded)) <= 3 * len(buffer.stores)


def test_final_observations_may_come_in_three_ways() -> None:
    whole = make_episode(1, 12)
    apart = {**whole, **{k: whole[k][:-1] for k in OBS}, **{f"final_{k}": whole[k][-1] for k in OBS}}
    doubled = {**whole, **{k: whole[k][:-1] for k in OBS}, **{f"next_{k}": whole[k][1:] for k in OBS}}
    seen = []
    for episode in (whole, apart, doubled, {k: v.numpy() for k, v in whole.items()}):
        with DictReplayBuffer(50, KEYS) as buffer:
            buffer.add(episode)
            seen.append(everything(buffer))
    for other in seen[1:]:
        assert all(torch.equal(seen[0][k], other[k]) for k in seen[0])


def test_a_next_that_is_not_the_next_frame_is_refused() -> None:
    whole = make_episode(1, 12)
    episode = {**whole, **{k: whole[k][:-1] for k in OBS}, **{f"next_{k}": whole[k][1:].clone() for k in OBS}}
    episode["next_state"][3, 0] += 1
    with DictReplayBuffer(50, KEYS) as buffer, pytest.raises(InputError, match=r"must hold .state. of the next frame"):
        buffer.add(episode)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.uint8, torch.bool, torch.complex64],
)  # fmt: skip
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_comes_back(dtype: torch.dtype, layout: str) -> None:
    torch.manual_seed(0)
    values = (torch.randn(20, 4, dtype=torch.float64) * 3).cumsum(0).to(dtype)
    with DictReplayBuffer(50, ["x", "id", "next_x"], layout=layout) as buffer:
        buffer.add({"x": values, "id": torch.arange(19)})
        batch = everything(buffer)
        assert batch["x"].dtype == dtype
        assert torch.equal(batch["x"], values[:-1])
        assert torch.equal(batch["next_x"], values[1:])


def test_what_was_added_is_copied_and_batches_are_the_callers() -> None:
    episode = make_episode(1, 10)
    with DictReplayBuffer(50, KEYS) as buffer:
        buffer.add(episode)
        before = everything(buffer)
        kept = {k: v.clone() for k, v in before.items()}
        for value in episode.values():
            value.zero_()
        for value in before.values():
            value.zero_()
        assert all(torch.equal(everything(buffer)[k], kept[k]) for k in kept)


def test_mistakes_get_one_clear_sentence() -> None:
    with pytest.raises(ConfigError, match="max_size"):
        DictReplayBuffer(0, KEYS)
    with pytest.raises(ConfigError, match="layout"):
        DictReplayBuffer(10, KEYS, layout="row")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one name"):
        DictReplayBuffer(10, [])
    with pytest.raises(ConfigError, match="twice"):
        DictReplayBuffer(10, ["a", "a"])
    with pytest.raises(ConfigError, match="needs 'reward'"):
        DictReplayBuffer(10, ["a", "next_a"], n_step=3)
    buffer = DictReplayBuffer(50, KEYS)
    with pytest.raises(InputError, match="empty"):
        buffer.sample(4)
    buffer.add(make_episode(1, 5))
    good = make_episode(2, 5)
    for change, text in (
        ({"state": None}, "lacks"),
        ({"other": torch.zeros(5)}, "does not store"),
        ({"state": good["state"][:, :2]}, "shape"),
        ({"state": good["state"].double()}, "stores torch.float32"),
        ({"action": good["action"][:3]}, "different numbers of frames"),
        ({"state": good["state"][:-1]}, "final_state"),
        ({"terminated": torch.ones(5, dtype=torch.bool)}, "before the last"),
    ):
        episode = {k: v for k, v in {**good, **change}.items() if v is not None}
        with pytest.raises(InputError, match=text):
            buffer.add(episode)
        assert len(buffer) == 5
    with pytest.raises(InputError, match="batch_size"):
        buffer.sample(0)
    with pytest.raises(InputError, match="uniformly"):
        buffer.update_priorities(np.array([0]), np.array([1.0]))
    buffer.close()
    for call in (lambda: buffer.sample(1), lambda: buffer.add(good), lambda: buffer.add_rollout({})):
        with pytest.raises(StorageError, match="closed"):
            call()
    buffer.close()


def test_nothing_takes_more_than_raw() -> None:
    rng = np.random.default_rng(0)
    with DictReplayBuffer(5000, ["noise", "bytes", "slow"]) as buffer:
        for _ in range(12):
            noise = rng.integers(0, 2**32, (100, 4), dtype=np.uint32).view(np.float32)
            picture = rng.integers(0, 256, (100, 30, 90), dtype=np.uint8)
            buffer.add({"noise": noise, "bytes": picture, "slow": np.linspace(1, 2, 100, dtype=np.float32)})
        for name, row in buffer.stats()["keys"].items():
            assert row["bytes_per_frame"] <= row["raw"], name
        assert buffer.stats()["keys"]["noise"]["codec"] == "raw"


def test_img_compressed_false_keeps_images_raw() -> None:
    with DictReplayBuffer(50, KEYS, img_compressed=False) as buffer:
        buffer.add(make_episode(1, 20))
        rows = buffer.stats()["keys"]
        assert rows["grid"]["codec"] == "raw"
        assert rows["lidar"]["codec"] == "packed"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_occupancy_maps_become_bits_and_other_values_still_come_back(layout: str) -> None:
    rng = np.random.default_rng(0)
    maps = rng.integers(0, 2, (20, 60, 70), dtype=np.uint8)
    later = maps.copy()
    later[7, 3, 3] = 9  # no longer only 0 and 1
    with DictReplayBuffer(100, ["map", "next_map"], layout=layout) as buffer:
        for frames in (maps, later):
            buffer.add({"map": frames})
        assert buffer.stats()["keys"]["map"]["codec"] == ("bits+lz4-shuffle" if layout == "episode" else "tiles")
        got = everything(buffer)["map"].numpy()
        assert np.array_equal(got[:19], maps[:-1])
        assert np.array_equal(got[19:], later[:-1])
