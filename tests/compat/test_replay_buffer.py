"""The compat replay buffer against plain lists of frames, on random episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fledge.compat.lz4_images import compress_image, compress_image_seq, decompress_image, decompress_image_seq
from fledge.compat.replay_buffer import DictReplayBuffer
from fledge.core.errors import FormatError, InputError


def random_episode(rng: np.random.Generator, first: int) -> dict[str, Any]:
    """Frames that carry their number everywhere; nodes differ in size, next_nodes are sometimes the next frame."""
    length = int(rng.integers(1, 12))
    numbers = np.arange(first, first + length + 1, dtype=np.float32)
    sizes = rng.integers(1, int(rng.integers(2, 9)), length + 1)
    nodes = [torch.full((int(size), 2), float(number)) for size, number in zip(sizes, numbers, strict=True)]
    own = rng.random() < 0.2
    maps = np.stack([np.full((6, 5), number) for number in numbers])
    form = rng.integers(3)
    grid: Any = (
        maps[:-1]
        if form == 0
        else [compress_image(m) for m in maps[:-1]]
        if form == 1
        else [compress_image_seq(maps[:-1])]
    )
    return {
        "nodes": nodes[:-1],
        "next_nodes": [-n for n in nodes[1:]] if own else nodes[1:],
        "grid": grid,
        "reward": numbers[:-1],
        "done": rng.random(length) < 0.3,
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("img_compressed", [True, False])
def test_it_equals_plain_lists_of_frames(seed: int, img_compressed: bool) -> None:
    rng = np.random.default_rng(seed)
    buffer = DictReplayBuffer(
        30, img_compressed=img_compressed, compress_epi=[None, True, False, None][seed], seed=seed
    )
    plain: dict[str, list[Any]] = {"nodes": [], "next_nodes": [], "reward": [], "done": []}
    for _ in range(25):
        episode = random_episode(rng, len(plain["reward"]))
        buffer.add(episode)
        for key, frames in plain.items():
            frames.extend(torch.as_tensor(frame) for frame in episode[key])
        kept = {key: frames[-30:] for key, frames in plain.items()}
        assert len(buffer) == len(kept["reward"]) == sum(buffer.episode_lens_prefix_sum.ar)
        for key, frames in kept.items():
            assert all(torch.equal(a, b) for a, b in zip(buffer.buffer[key], frames, strict=True)), key
        batch = buffer.sample(16)
        for row, number in enumerate(batch["reward"].long().tolist()):
            place = number - int(kept["reward"][0])
            for key in ("nodes", "next_nodes"):
                there = batch[key + "_mask"][row] if key + "_mask" in batch else slice(None)  # all of one size so far
                assert torch.equal(batch[key][row][there], kept[key][place]), key
            assert (batch["grid"][row] == number).all()


def test_a_refused_episode_changes_nothing() -> None:
    buffer = DictReplayBuffer(30)
    buffer.add({"grid": np.zeros((4, 3, 2)), "done": [0, 0, 0, 1]})
    wrong: list[dict[str, Any]] = [
        {"grid": np.zeros((4, 3, 2))},
        {"grid": np.zeros((3, 3, 2)), "done": [0, 0, 0, 1]},
        {"grid": [np.zeros((3, 2)), np.zeros((3, 4))], "done": [0, 1]},
        {"grid": np.zeros((2, 3, 9)), "done": [0, 1]},
        {"grid": np.zeros((2, 3, 2), np.float16), "done": [0, 1]},
    ]
    for episode in wrong:
        with pytest.raises(InputError):
            buffer.add(episode)
        assert len(buffer) == 4
        assert buffer.sample(3)["grid"].shape == (3, 3, 2)
    with pytest.raises(InputError, match="empty"):
        DictReplayBuffer(30).sample(1)


def test_damaged_images_are_refused() -> None:
    image = np.arange(30, dtype=np.float32).reshape(5, 6)
    whole = compress_image(image)
    assert np.array_equal(decompress_image(whole), image)
    assert np.array_equal(decompress_image_seq(compress_image_seq(image)), image)
    for data in (whole[:20], b"", b"abc", whole[4:], whole.replace(b"[5, 6]", b"[5, 7]")):
        with pytest.raises((FormatError, InputError)):
            decompress_image(data)
    with pytest.raises(FormatError):
        decompress_image_seq(whole, (1 << 20, 1 << 20), 1 << 10, np.float32)
