"""TorchRL's buffers, samplers and writers on our storage give what they give on TorchRL's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict

torchrl = pytest.importorskip("torchrl.data")

from fledge.core.errors import FormatError, InputError  # noqa: E402
from fledge.replay.torchrl_storage import ROWS, CompressedStorage  # noqa: E402


def rows(count: int, seed: int = 0, image: bool = True) -> TensorDict:
    rng = np.random.default_rng(seed)
    lidar = np.where(rng.random((count, 20)) < 0.8, 0, rng.random((count, 20))).astype(np.float32)
    data: dict[str, Any] = {
        "lidar": torch.from_numpy(lidar),
        "action": torch.from_numpy(rng.integers(0, 4, count)),
        "next": {
            "reward": torch.from_numpy(rng.random((count, 1)).astype(np.float32)),
            "done": torch.zeros(count, 1).bool(),
        },
    }
    if image:
        grid = np.repeat(np.arange(count, dtype=np.uint8)[:, None, None], 50, 1).repeat(50, 2)
        data["grid"] = torch.from_numpy(grid)
    return TensorDict(data, [count])


@settings(max_examples=15, deadline=None)
@given(
    size=st.integers(1, 70),
    writes=st.lists(st.tuples(st.integers(0, 69), st.integers(1, 40)), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_any_writes_are_read_back(size: int, writes: list[tuple[int, int]], seed: int) -> None:
    storage = CompressedStorage(size)
    plain: dict[int, TensorDict] = {}
    for k, (begin, count) in enumerate(writes):
        index = (begin + torch.arange(min(count, size))) % size
        data = rows(len(index), seed + k)
        storage.set(index, data)
        plain.update({int(i): data[j] for j, i in enumerate(index)})
        assert len(storage) == max(plain) + 1
        last = max(plain)
        assert (storage.get(last) == plain[last]).all()
        chosen = torch.tensor(sorted(plain) * 2)
        assert (storage.get(chosen) == torch.stack([plain[int(i)] for i in chosen])).all()
    assert [bool(storage.contains(i)) for i in range(size)] == [i in plain for i in range(size)]
    storage.close()


def test_torchrl_s_buffer_draws_the_same_as_on_its_own_storage() -> None:
    drawn = []
    for storage in (torchrl.LazyTensorStorage(100), CompressedStorage(100)):
        torch.manual_seed(0)
        buffer = torchrl.TensorDictReplayBuffer(storage=storage, batch_size=32)
        for k in range(4):  # wraps around
            buffer.extend(rows(33, k))
        buffer.add(rows(1, 9)[0])
        drawn.append([buffer.sample() for _ in range(3)])
        assert len(buffer) == 100
    for one, other in zip(*drawn, strict=True):
        assert (one == other).all()


def test_torchrl_s_prioritised_sampler_works() -> None:
    try:
        sampler = torchrl.PrioritizedSampler(64, alpha=0.7, beta=0.9)
    except RuntimeError as error:
        pytest.skip(str(error))
    buffer = torchrl.TensorDictReplayBuffer(storage=CompressedStorage(64), sampler=sampler, batch_size=16)
    buffer.extend(rows(64))
    batch = buffer.sample()
    batch["td_error"] = torch.rand(16)
    buffer.update_tensordict_priority(batch)
    assert buffer.sample().shape == (16,)


def test_torchrl_s_slice_sampler_works() -> None:
    data = rows(48)
    data["episode"] = torch.arange(48) // 12
    sampler = torchrl.SliceSampler(slice_len=4, traj_key="episode")
    buffer = torchrl.TensorDictReplayBuffer(storage=CompressedStorage(48), sampler=sampler, batch_size=16)
    buffer.extend(data)
    windows = buffer.sample().reshape(4, 4)
    assert (windows["episode"] == windows["episode"][:, :1]).all()


def test_state_goes_there_and_back_and_damage_is_told() -> None:
    storage = CompressedStorage(60)
    storage.set(range(50), rows(50))
    state = storage.state_dict()
    other = CompressedStorage(60)
    other.load_state_dict(state)
    assert (other.get(range(50)) == rows(50)).all()
    other.set(range(50, 60), rows(10, 3))
    assert (other.get(slice(0, 60))[50:] == rows(10, 3)).all()
    state["packed"]["data"] = np.full_like(state["packed"]["data"], 255)
    for broken in (state, {k: v for k, v in state.items() if k != "specs"}, {**state, "single": 7}):
        with pytest.raises(FormatError, match="damaged"):
            other.load_state_dict(broken)
        assert (other.get(slice(0, 50)) == rows(50)).all()  # as it was


def test_masks_shapes_and_nests_as_on_torchrl_s_own_storage() -> None:
    data = rows(20)
    data["deep"] = TensorDict({"a": torch.arange(40.0).reshape(20, 2)}, [20, 2])
    own = torchrl.TensorDictReplayBuffer(storage=torchrl.LazyTensorStorage(20), batch_size=4)
    ours = torchrl.TensorDictReplayBuffer(storage=CompressedStorage(20), batch_size=4)
    for buffer in (own, ours):
        buffer.extend(data)
    for index in (torch.arange(20) % 5 == 4, torch.tensor([[1, 2], [3, 4]]), [3, 1], slice(2, 9), 5):
        one, other = own[index], ours[index]
        assert one.shape == other.shape
        assert one["deep"].shape == other["deep"].shape
        assert (one.select(*data.keys()) == other.select(*data.keys())).all()
    state = ours._storage.state_dict()
    again = CompressedStorage(20)
    again.load_state_dict(state)
    assert again.get(slice(0, 3))["deep"].shape == (3, 2)
    with pytest.raises(IndexError, match="mask"):
        ours._storage.get(torch.ones(7, dtype=torch.bool))


def test_only_rows_that_are_not_full_blocks_wait_uncompressed() -> None:
    storage = CompressedStorage(1000)
    storage.set(range(0, 5 * ROWS + 3), rows(5 * ROWS + 3))
    assert len(storage._open) == 1
    assert len(storage._packed) == 5
    storage.set(2, rows(1)[0])  # an old row again
    assert len(storage._open) == 1


def test_mistakes_get_one_clear_sentence() -> None:
    storage = CompressedStorage(20)
    storage.set(0, rows(1)[0])
    with pytest.raises(InputError, match="keys"):
        storage.set(1, rows(1, image=False)[0])
    with pytest.raises(InputError, match="must be a TensorDict"):
        storage.set(1, torch.zeros(3))
    with pytest.raises(InputError, match="'name' is a NonTensor"):
        storage.set(1, rows(1)[0].set("name", NonTensorData("abc")))
    with pytest.raises(InputError, match="must be"):
        storage.set(1, rows(1)[0].set("action", torch.zeros(2)))
    with pytest.raises(IndexError, match="never written"):
        storage.get(7)
    with pytest.raises(IndexError, match="must lie in"):
        storage.get(20)


def test_importing_replay_does_not_import_torchrl() -> None:
    import subprocess
    import sys

    code = "import sys, fledge.replay; assert not {'torch', 'warp', 'torchrl', 'numpy'} & set(sys.modules);"
    code += "fledge.replay.DictReplayBuffer; assert 'torchrl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
