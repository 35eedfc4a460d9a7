"""TorchRL's `dumps` and `loads`, fork, threads and copies with our storage."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

torchrl = pytest.importorskip("torchrl.data")

from fledge.core.errors import ConfigError, FledgeError, FormatError, InputError, StorageError  # noqa: E402
from fledge.replay.torchrl_rows import FILE  # noqa: E402
from fledge.replay.torchrl_storage import CompressedStorage  # noqa: E402
from tests.replay.forking import in_child  # noqa: E402
from tests.replay.test_torchrl_storage import rows  # noqa: E402
from tests.storage.format.fuzz import flip_bytes  # noqa: E402


def replay(size: int = 50, **settings: Any) -> Any:
    return torchrl.TensorDictReplayBuffer(storage=CompressedStorage(size), batch_size=16, **settings)


@pytest.mark.parametrize("count", [0, 1, 8, 37, 50, 63])  # nothing, open blocks, full, around the end
@pytest.mark.parametrize("sampler", [torchrl.RandomSampler, torchrl.SamplerWithoutReplacement])
def test_a_dumped_buffer_comes_back_and_goes_on_alike(tmp_path: Path, count: int, sampler: Any) -> None:
    buffer, other = replay(sampler=sampler()), replay(sampler=sampler())
    for k in range(0, count, 20):
        buffer.extend(rows(min(20, count - k), k))
    other.extend(rows(3, 99))  # what was there before is gone
    buffer.dumps(tmp_path / "replay")
    other.loads(tmp_path / "replay")
    assert len(other) == len(buffer) == min(count, 50)
    for _ in range(3):
        if len(buffer):
            assert (other[:] == buffer[:]).all()
            drawn = []
            for one in (buffer, other):
                torch.manual_seed(0)
                drawn.append(one.sample())
            assert (drawn[0] == drawn[1]).all()
        assert buffer.extend(rows(7, 5)).tolist() == other.extend(rows(7, 5)).tolist()  # the writer's place too


def test_dumping_again_replaces_what_was_there(tmp_path: Path) -> None:
    buffer, other = replay(), replay()
    for seed in (1, 2):
        buffer.empty()
        buffer.extend(rows(20, seed))
        buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert (other[:].exclude("index") == rows(20, 2)).all()


def test_the_storage_can_be_dumped_by_itself_and_no_pickle_is_written(tmp_path: Path) -> None:
    storage, other = CompressedStorage(50), CompressedStorage(50)
    storage.set(range(30), rows(30))
    storage.dumps(tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [FILE]
    other.loads(tmp_path / "a")
    assert (other.get(range(30)) == rows(30)).all()
    with pytest.raises(InputError, match="without hooks"):
        storage.register_save_hook(lambda data, path: data)


def test_what_cannot_be_loaded_is_told_and_changes_nothing(tmp_path: Path) -> None:
    storage = CompressedStorage(50)
    storage.set(range(30), rows(30))
    storage.dumps(tmp_path)
    with pytest.raises(InputError, match="make it with max_size"):
        CompressedStorage(90).loads(tmp_path)
    with pytest.raises(StorageError, match="no checkpoint at"):
        storage.loads(tmp_path / "nothing")
    good, rng = (tmp_path / FILE).read_bytes(), random.Random(0)
    for _ in range(100):
        (tmp_path / FILE).write_bytes(flip_bytes(good, rng))
        with contextlib.suppress(FledgeError):
            storage.loads(tmp_path)
        assert (storage.get(range(30)) == rows(30)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"length": -1}, {"length": 2**70}, {"length": 99}, {"length": 3}, {"nests": [["next", [7]]]},
        {"specs": [["x", {"shape": [2**50], "dtype": "float32", "ragged": False}]]}, {"filled": np.ones(56, bool)},
        {"single": []}, {"nests": [["next", [-1]]]},
    ],
)  # fmt: skip
def test_a_forged_state_is_one_format_error(change: dict[str, Any]) -> None:
    storage = CompressedStorage(50)
    storage.set(range(30), rows(30))
    with pytest.raises(FormatError, match="damaged"):
        storage.load_state_dict({**storage.state_dict(), **change})
    assert (storage.get(range(30)) == rows(30)).all()


def test_a_forked_child_reads_and_writes() -> None:
    storage = CompressedStorage(500, decode_threads=3)
    storage.set(range(400), rows(400))
    storage.get(range(400))  # the decoding threads are there, in this process only

    def work() -> bool:
        found = bool((storage.get(range(400)) == rows(400)).all())
        storage.set(range(400, 420), rows(20, 3))
        return found and bool((storage.get(range(400, 420)) == rows(20, 3)).all())

    assert in_child(work)
    assert len(storage) == 400


def test_threads_read_while_others_write_and_save() -> None:
    storage, failures = CompressedStorage(400, decode_threads=2), list[BaseException]()
    storage.set(range(100), rows(100))

    def over_and_over(call: Callable[[], Any]) -> None:
        try:
            for _ in range(25):
                call()
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        assert (storage.get(range(100)) == rows(100)).all()

    def load() -> None:
        other = CompressedStorage(400)
        other.load_state_dict(storage.state_dict())
        assert (other.get(range(100)) == rows(100)).all()

    place = iter(range(100, 10_000, 3))
    calls = (read, read, load, lambda: storage.set([i := next(place), i + 1, i + 2], rows(3)))
    threads = [threading.Thread(target=over_and_over, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda storage: pickle.loads(pickle.dumps(storage))])
def test_a_copy_is_a_storage_of_its_own(way: Callable[[Any], Any]) -> None:
    storage = CompressedStorage(50, decode_threads=2)
    storage.set(range(30), rows(30))
    storage.get(range(30))
    other = way(storage)
    other.set(range(10), rows(10, 4))
    storage.set(range(30, 35), rows(5, 5))
    assert (len(storage), len(other)) == (35, 30)
    assert (storage.get(range(30)) == rows(30)).all()
    assert (other.get(range(30)) == torch.cat([rows(10, 4), rows(30)[10:]])).all()


def test_refused_rows_teach_nothing_and_settings_are_checked() -> None:
    storage = CompressedStorage(50)
    with pytest.raises(InputError, match="must be"):
        storage.set(range(5), rows(3))
    with pytest.raises(InputError, match="dense"):
        storage.set(range(3), TensorDict({"x": torch.ones(3).to_sparse()}, [3]))
    storage.set(range(2), TensorDict({"x": torch.ones(2)}, [2]))
    assert storage.get(1)["x"] == 1
    for size in (0, 1.5, "a"):
        with pytest.raises(ConfigError, match="max_size is"):
            CompressedStorage(size)  # type: ignore[arg-type]
