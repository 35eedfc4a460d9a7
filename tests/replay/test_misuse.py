"""Data that a buffer refuses, and unusual data that it takes: each case once gave a wrong result or an unclear error."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError, FormatError, InputError, StorageError
from fledge.replay import DictReplayBuffer, KeySpec

LAYOUTS = ("frame", "chunk", "episode")
NODES = KeySpec((4, 2), torch.float32, ragged=True)


def counting(keys: list[str] | None = None, frames: int = 5, **settings: Any) -> DictReplayBuffer:
    """A buffer with one episode whose x is 0, 1, 2, ..."""
    buffer = DictReplayBuffer(100, keys or ["x", "next_x", "reward"], **settings)
    buffer.add({"x": np.arange(frames + 1.0), "reward": np.ones(frames, np.float32)})
    return buffer


# ---- exact where it was not ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2])
def test_a_window_past_the_end_keeps_its_final_observation(batch: int) -> None:
    got = counting(frames=3).sample_sequences(batch, 5)
    assert got["x"][0].tolist() == [0, 1, 2, 0, 0]
    assert got["next_x"][0].tolist() == [1, 2, 3, 0, 0]
    got["x"].fill_(-1)
    assert got["next_x"][0].tolist() == [1, 2, 3, 0, 0]  # memory of its own


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_windows_past_the_end_of_unusual_types(dtype: torch.dtype) -> None:
    buffer = DictReplayBuffer(100, ["x"])
    buffer.add({"x": torch.arange(1, 4).to(dtype)})
    assert buffer.sample_sequences(1, 5)["x"].to(torch.float32).tolist() == [[1, 2, 3, 0, 0]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_a_single_byte_among_bits(layout: Any, dtype: torch.dtype) -> None:
    buffer = DictReplayBuffer(5000, ["flag"], layout=layout)
    buffer.add({"flag": (torch.arange(200) % 2).to(dtype)})
    buffer.add({"flag": torch.ones(1, dtype=dtype)})
    assert buffer.get([200])["flag"].view(torch.uint8).tolist() == [1]


def test_n_step_takes_done_of_the_last_step() -> None:
    buffer = DictReplayBuffer(100, ["x", "next_x", "reward", "done"], n_step=3, gamma=0.9)
    buffer.add({"x": np.arange(6.0), "reward": np.ones(5), "done": np.array([0, 0, 0, 0, 1], bool)})
    batch = buffer.get(np.arange(5))
    assert batch["next_x"].tolist() == [3, 4, 5, 5, 5]
    assert batch["done"].tolist() == [False, False, True, True, True]


def test_n_step_returns_of_whole_rewards_have_fractions() -> None:
    buffer = DictReplayBuffer(100, ["x", "next_x", "reward"], n_step=3, gamma=0.9)
    buffer.add({"x": np.arange(6.0), "reward": np.ones(5, np.int64)})
    assert buffer.get(np.arange(5))["reward"].tolist() == pytest.approx([2.71, 2.71, 2.71, 1.9, 1.0])


def test_a_key_called_count_beside_its_namesake() -> None:
    keys = ["people", "next_people", "people_count", "reward"]
    for layout in LAYOUTS:
        buffer = DictReplayBuffer(100, keys, layout=layout)  # type: ignore[arg-type]
        rollout = {
            "people": torch.arange(6.0).reshape(3, 2),
            "final_people": torch.full((3, 2), 9.0),
            "people_count": torch.arange(6).reshape(3, 2),
            "reward": torch.zeros(3, 2),
            "done": torch.tensor([[0, 0], [0, 0], [1, 1]], dtype=torch.bool),
        }
        assert buffer.add_rollout(rollout) == 2
        assert buffer.get(np.arange(6))["people_count"].tolist() == [0, 2, 4, 1, 3, 5]
        other = DictReplayBuffer(100, keys, layout=layout)  # type: ignore[arg-type]
        other.load_state_dict(buffer.state_dict())
        assert other.get(np.arange(6))["next_people"].tolist() == [2, 4, 9, 3, 5, 9]


def test_stores_are_chosen_on_more_than_the_first_episode() -> None:
    rng = np.random.default_rng(0)
    buffer = DictReplayBuffer(10_000, ["image"])
    buffer.add({"image": np.zeros((16, 64, 64), np.uint8)})  # dark: only zeros
    row = np.arange(64, dtype=np.uint8)
    for _ in range(40):
        shift = rng.integers(0, 150, (16, 1, 1), dtype=np.uint8)
        buffer.add({"image": np.broadcast_to(row, (16, 64, 64)) + shift})
    assert buffer.stats()["keys"]["image"]["bytes_per_frame"] < 400  # of 4,096


def test_small_buffers_choose_their_stores_again_too() -> None:
    buffer = DictReplayBuffer(100, ["x"])
    for _ in range(20):
        buffer.add({"x": np.arange(50.0)})
    assert buffer.measured


# ---- refused, and clearly --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        (["x", "index"], {}),
        (["x", "weight"], {"prioritized": True}),
        (["x", "next_x", "reward", "discount"], {"n_step": 2}),
        ({"nodes": NODES, "nodes_count": None}, {}),
        ({"nodes": NODES, "nodes_mask": None}, {}),
        (["terminated", "next_terminated"], {}),
        (["x", "next_x", "next_next_x"], {}),
        ({"x": (3,)}, {}),
    ],
)
def test_keys_that_cannot_be_kept_apart(keys: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DictReplayBuffer(100, keys, **settings)


def test_a_key_called_mask_is_only_in_the_way_of_windows() -> None:
    """Discrete actions have masks, which learners must be able to keep."""
    buffer = DictReplayBuffer(100, ["x", "mask"])
    buffer.add({"x": np.arange(10.0), "mask": np.arange(10) % 2 == 0})
    batch = buffer.sample(32)
    assert torch.equal(batch["mask"], batch["x"] % 2 == 0)
    with pytest.raises(InputError, match="called 'mask'"):
        buffer.sample_sequences(2, 3)


def test_a_size_must_be_whole() -> None:
    with pytest.raises(ConfigError, match="whole number"):
        DictReplayBuffer(1e6, ["x"], prioritized=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "episode",
    [
        {"x": np.zeros((3, 2), np.uint8), "final_x": np.full((2,), 300.7), "reward": np.zeros(3)},
        {"x": np.zeros((3, 2, 4)), "final_x": np.zeros((4, 2)), "reward": np.zeros(3)},
        {"x": np.zeros((4, 2)), "final_x": np.zeros(2), "reward": np.zeros(3)},
        {"x": np.zeros((3, 2)), "final_x": np.zeros(2), "next_x": np.zeros((3, 2)), "reward": np.zeros(3)},
        {"x": np.array(["a", 1.0], dtype=object), "reward": np.zeros(1)},
        {"x": [[1.0], [2.0, 3.0]], "reward": np.zeros(1)},
        {"x": np.array([{}, {}]), "reward": np.zeros(1)},
    ],
)
def test_episodes_that_do_not_fit_themselves(episode: dict[str, Any]) -> None:
    buffer = DictReplayBuffer(100, ["x", "next_x", "reward"])
    with pytest.raises(InputError):
        buffer.add(episode)
    buffer.add({"x": np.zeros((3, 5), np.float16), "reward": np.zeros(2)})  # nothing was learned from it


def test_a_refused_episode_teaches_nothing() -> None:
    buffer = DictReplayBuffer(10, ["x", "terminated"])
    with pytest.raises(InputError, match="before the last"):
        buffer.add({"x": np.zeros((3, 2)), "terminated": np.ones(3, bool)})
    with pytest.raises(InputError, match="this rollout needs"):
        buffer.add_rollout({"x": np.zeros(3), "terminated": np.zeros((3, 2), bool)})
    buffer.add({"x": np.zeros((3, 2), np.float32), "terminated": np.zeros(3, bool)})
    assert buffer.get([0])["x"].dtype == torch.float32


def test_odd_arrays_are_read_as_what_they_mean() -> None:
    buffer = DictReplayBuffer(100, {"big": KeySpec([], torch.float32), "conj": None})  # type: ignore[arg-type]
    values = torch.tensor([1 + 2j, 3 - 4j])
    buffer.add({"big": np.arange(2, dtype=">f4"), "conj": values.conj()})
    batch = buffer.get([0, 1])
    assert batch["big"].tolist() == [0, 1]
    assert torch.equal(batch["conj"], values.conj().resolve_conj())


def test_indices_that_are_not_kept() -> None:
    buffer = DictReplayBuffer(4, ["x"])
    for _ in range(3):
        buffer.add({"x": np.arange(2)})
    assert buffer.get(torch.tensor(3))["index"].tolist() == [3]
    for index in ([1], [6], []):
        with pytest.raises(InputError, match="holds only 2 to 5"):
            buffer.get(index)
    with pytest.raises(InputError, match="whole number"):
        buffer.get([2.9])  # type: ignore[list-item]


def test_priorities_that_make_no_sense() -> None:
    buffer = DictReplayBuffer(100, ["x"], prioritized=True)
    buffer.add({"x": np.arange(3)})
    with pytest.raises(InputError, match="absolute values"):
        buffer.update_priorities(np.arange(3), np.array([-5.0, 1, 1]))
    with pytest.raises(InputError, match="whole number"):
        buffer.update_priorities([1.0], [1.0])  # type: ignore[list-item]
    buffer.update_priorities(np.arange(3), torch.tensor([0, 1, 1], dtype=torch.bfloat16))
    assert np.bincount(buffer.sample(3000)["x"], minlength=3)[0] < 30


def test_a_count_that_lies_allocates_nothing() -> None:
    buffer = DictReplayBuffer(100, ["x"])
    buffer.add_rollout({"x": np.zeros((3, 2)), "done": np.zeros((3, 2), bool)})
    state = buffer.state_dict()
    state["open"]["count"] = np.array([2**40, 1])
    with pytest.raises(FormatError, match="wrong shape or dtype of 'x'"):
        buffer.load_state_dict(state)
    long = DictReplayBuffer(2, ["x"])
    with pytest.raises(InputError, match="open episode of 3"):
        long.load_state_dict(buffer.state_dict())


def test_nothing_works_after_the_end() -> None:
    buffer = counting(prioritized=True)
    buffer.close()
    for call in (buffer.state_dict, lambda: buffer.update_priorities([0], [1.0]), lambda: buffer.sample(1)):
        with pytest.raises(StorageError, match="closed"):
            call()


def test_figures_wait_for_who_is_at_work() -> None:
    buffer, got = counting(), list[Any]()
    reader = threading.Thread(target=lambda: got.append(buffer.stats()))
    with buffer.lock:
        reader.start()
        reader.join(0.1)
        assert not got
    reader.join(10)
    assert got[0]["transitions"] == 5


def test_pinned_memory_is_for_a_cuda_device() -> None:
    with pytest.raises(ConfigError, match="pin_memory=True needs a CUDA device"):
        DictReplayBuffer(10, ["obs"], device="cpu", pin_memory=True)


def test_a_batch_larger_than_memory_gets_a_sentence() -> None:
    buffer = counting(prioritized=True)
    with pytest.raises(InputError, match="batch_size=1000000000000 does not fit into memory"):
        buffer.sample(10**12)
    for length in (10**12, 10**30):
        with pytest.raises(InputError, match=f"batch_size=2 and length={length} does not fit into memory"):
            buffer.sample_sequences(2, length)


@pytest.mark.parametrize("wrong", [["a", "b"], [None, 1], [[1], [2, 3]], [1j, 2], object()])
def test_priorities_must_be_numbers(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"priority is .*, but must hold one number per index"):
        counting(prioritized=True).update_priorities([0, 1], wrong)


def test_the_default_device_of_torch_does_not_matter() -> None:
    buffer = counting(prioritized=True, n_step=2)
    with torch.device("meta"):
        batch = buffer.sample(4)
        buffer.update_priorities(batch["index"], [1.0, 2.0, 3.0, 4.0])
        assert {value.device.type for value in (batch | buffer.sample_sequences(2, 2)).values()} == {"cpu"}
