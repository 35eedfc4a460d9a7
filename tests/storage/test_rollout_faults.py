"""RolloutStorage under what systems and strangers do: fork, copies, threads, kills, full disks, damaged and hostile files."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from fledge.core.errors import FledgeError, FormatError, StorageError
from fledge.storage import AsyncCheckpointSaver, RolloutStorage, receive, send
from fledge.storage.stream import MAX_BYTES, pack_rollout, unpack_rollout
from tests.replay.forking import in_child
from tests.storage.format.forgery import forge, pack, unpack
from tests.storage.format.fuzz import change_json, flip_bytes

T, N = 8, 4


def rollout(seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    entries = {
        "seed": torch.full((T, N), seed),
        "in": TensorDict({"x": torch.randn(T, N, 30, generator=generator)}, [T, N]),
        "s": NonTensorStack.from_list([[f"{seed}"] * N] * T),
    }
    return TensorDict(entries, [T, N], names=["time", "env"])


def same(got: Any, seed: int) -> bool:
    data = rollout(seed)
    return (
        set(got.keys(True, True)) == set(data.keys(True, True))
        and torch.equal(got["seed"], data["seed"])
        and torch.equal(got["in", "x"], data["in", "x"])
        and got.get("s").tolist() == data.get("s").tolist()
    )


# ---- processes and threads -------------------------------------------------------------------------------------


def test_a_forked_child_reads_and_writes_with_threads_of_its_own(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        storage.save(rollout(1), 1).wait(60)

        def work() -> bool:
            storage.save(rollout(2), 2)
            return same(storage.load(1), 1) and same(storage.load(2), 2) and storage.drain(60)

        assert in_child(work)
        assert storage.list() == [1, 2]
        assert same(storage.load(2), 2)


def test_a_child_does_not_wait_for_what_only_its_parent_can_finish(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        begun, go = threading.Event(), threading.Event()

        def hold(*_: Any) -> Any:
            begun.set()
            go.wait(60)
            raise StorageError("held the writer")

        storage._saver.submit({}, tmp_path / "x", hold)
        begun.wait(60)
        storage.save(rollout(1), 1)  # waits behind it
        with storage._lock:  # and a thread is inside

            def work() -> str:
                try:
                    return str(storage.load(1))
                except StorageError as error:
                    return str(error)

            assert "has no rollout 1" in in_child(work)
        go.set()
        assert same(storage.load(1), 1)


def test_a_shared_saver_stays_in_its_process(tmp_path: Path) -> None:
    with AsyncCheckpointSaver() as saver, RolloutStorage(tmp_path, saver=saver) as storage:
        storage.save(rollout(1), 1).wait(60)
        assert in_child(lambda: same(storage.load(1), 1))
        with pytest.raises(StorageError, match="shares a saver"):
            pickle.dumps(storage)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda storage: pickle.loads(pickle.dumps(storage))])
def test_a_copy_reads_the_same_folder_and_writes_by_itself(tmp_path: Path, way: Callable[[Any], Any]) -> None:
    with RolloutStorage(tmp_path, compression_level=3, time_dim=1) as storage:
        storage.save(rollout(1), 1).wait(60)
        with way(storage) as other:
            assert (other.save_dir, other.compression_level, other.time_dim) == (storage.save_dir, 3, 1)
            assert same(other.load(1), 1)
            other.save(rollout(2), 2)
        assert same(storage.load(2), 2)


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        storage.save(rollout(1), 1).wait(60)
    before = set(threading.enumerate())
    with RolloutStorage(tmp_path) as storage:
        assert same(storage.load(1), 1)
        assert set(threading.enumerate()) == before
    with pytest.raises(StorageError, match="closed"):
        storage.save(rollout(2), 2)


def test_the_same_iteration_from_many_threads_is_one_whole_rollout(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for _ in range(5):
                    storage.save(rollout(seed), 1)
                    got = storage.load(1)
                    assert same(got, int(got["seed"][0, 0]))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert storage.drain(60)
        assert storage.list() == [1]


def test_a_relative_folder_is_that_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RolloutStorage("rollouts") as storage:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        storage.save(rollout(1), 1).wait(60)
        assert same(storage.load(1), 1)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_closed_output_does_not_fail_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RolloutStorage(tmp_path, verbose=True) as storage:
        closed = io.StringIO()
        closed.close()
        monkeypatch.setattr(sys, "stdout", closed)
        storage.save(rollout(1), 1).wait(60)
        monkeypatch.undo()
        assert same(storage.load(1), 1)


def test_a_loaded_rollout_is_gone_when_it_is_let_go(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path) as storage:
        storage.save(rollout(1), 1).wait(60)
        gc.disable()
        try:
            got = storage.load(1)
            kept = weakref.ref(got["seed"])
            del got
            assert kept() is None  # nothing that waits for the garbage collector holds on to it
        finally:
            gc.enable()


# ---- kills and full disks --------------------------------------------------------------------------------------

ENDLESS = """
import sys
from tests.storage.test_rollout_faults import RolloutStorage, rollout
storage = RolloutStorage(sys.argv[1])
print("begun", flush=True)
for number in range(10**6):
    storage.save(rollout(number % 7), number % 7)
"""


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_in_the_middle_leaves_whole_rollouts(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(0)
    for _ in range(rounds):
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while not list(tmp_path.glob("rollout_*")):
            assert process.poll() is None
        threading.Event().wait(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with RolloutStorage(tmp_path) as storage:
            assert storage.list()
            assert all(same(storage.load(number), number) for number in storage.list())
            assert not list(tmp_path.glob(".fledge-tmp-*"))


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    with RolloutStorage(tmp_path, compression_level=0) as storage:
        storage.save(rollout(1), 1).wait(60)

    def work() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # no file may grow past it
        storage = RolloutStorage(tmp_path, compression_level=0)
        try:
            storage.save(rollout(2), 1).wait(60)
        except StorageError as error:
            return str(error)
        return "saved"

    assert "could not be written" in in_child(work)
    with RolloutStorage(tmp_path) as storage:
        assert same(storage.load(1), 1)
        assert os.listdir(tmp_path) == [storage.path(1).name]


# ---- damaged and hostile files -----------------------------------------------------------------------------------


def test_a_mutated_file_is_refused_or_gives_what_was_saved(tmp_path: Path) -> None:
    rng = random.Random(1)
    with RolloutStorage(tmp_path) as storage:
        path = storage.save(rollout(1), 1).wait(60)
        good, (members, manifest) = path.read_bytes(), unpack(path)
        tracemalloc.start()
        try:
            for case in range(600):
                if case % 2:
                    path.write_bytes(flip_bytes(good, rng))
                else:
                    changed = manifest
                    for _ in range(rng.choice((1, 1, 3))):
                        changed = {
                            **changed,
                            (part := rng.choice(("tree", "metadata"))): change_json(changed[part], rng),
                        }
                    path.write_bytes(pack(list(members.items()), changed))
                try:
                    got = storage.load(1)
                    assert case % 2 == 0 or same(got, 1)  # who forges the manifest may say something else
                except FormatError:
                    pass
            assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        finally:
            tracemalloc.stop()


def forgeries() -> dict[str, Callable[[Any], Any]]:
    """Changes of a manifest's tree that a reader must not fall for, by what they claim."""

    def batch(value: Any) -> Callable[[Any], Any]:
        return lambda tree: {"dict": {**tree["dict"], "batch": value}}

    def entry(value: Any) -> Callable[[Any], Any]:
        return lambda tree: {"dict": {**tree["dict"], "data": {"dict": {"s": value}}}}

    many = {"dict": {"values": ["x"], "index": {"leaf": 0}}}
    return {
        "a huge batch": batch([2**62, 2**62]),
        "a huge empty batch": batch([0, 2**62]),
        "a negative batch": batch([-1, 4]),
        "a batch of text": batch(["8", "4"]),
        "another batch": batch([4, 8]),
        "no batch": batch([]),
        "no axes": batch({"leaf": 0}),
        "a batch of flags": batch([True, True]),
        "a wrong name": lambda tree: {"dict": {**tree["dict"], "names": [1, 2]}},
        "too many names": lambda tree: {"dict": {**tree["dict"], "names": ["a"] * 9}},
        "data that is text": lambda tree: {"dict": {**tree["dict"], "data": "x"}},
        "data that is a list": lambda tree: {"dict": {**tree["dict"], "data": []}},
        "nothing": lambda tree: None,
        "an entry that is a number": entry(3),
        "an entry that is text": entry("leaf"),
        "an entry without anything": entry({"dict": {}}),
        "an index without values": entry({"dict": {"index": {"leaf": 0}}}),
        "an index of floats": entry({"dict": {"values": ["x"], "index": {"leaf": 1}}}),
        "an index past its values": entry(many),
        "an index that is text": entry({"dict": {"values": ["x"], "index": "leaf"}}),
    }


@pytest.mark.parametrize("claim", forgeries())
def test_a_hostile_tree_is_one_format_error(tmp_path: Path, claim: str) -> None:
    with RolloutStorage(tmp_path) as storage:
        path = storage.save(rollout(5), 1).wait(60)

        def change(members: Any, manifest: Any) -> None:
            manifest["tree"] = forgeries()[claim](manifest["tree"])

        forge(path, change)
        for part in ({}, {"keys": ["s"]}, {"envs": 0, "steps": -1}):
            with pytest.raises(FledgeError) as caught:
                storage.load(1, **part)  # type: ignore[arg-type]
            assert part or isinstance(caught.value, FormatError)


@pytest.mark.parametrize("time_dim", [-1, 2, 2**70, 1.0, "0", None, True, {"leaf": 0}])
def test_a_time_axis_that_is_not_there_is_a_format_error(tmp_path: Path, time_dim: Any) -> None:
    with RolloutStorage(tmp_path) as storage:
        path = storage.save(rollout(1), 1).wait(60)
        forge(path, lambda members, manifest: manifest["metadata"]["dict"]["rollout"]["dict"].update(time_dim=time_dim))
        with pytest.raises(FormatError):
            storage.load(1)


def test_a_stream_that_drips_takes_no_more_memory_than_it_brings() -> None:
    wire = io.BytesIO()
    data = TensorDict({"x": torch.randn(T, N, 4000)}, [T, N])
    send(data, wire)
    size = wire.tell()
    wire.seek(0)

    class Dripping:
        def read(self, count: int) -> bytes:
            return wire.read(1)

    tracemalloc.start()
    try:
        got = receive(Dripping())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got is not None
    assert torch.equal(got["x"], data["x"])
    assert peak < 8 * size  # a list of single bytes took fifty times as much


def test_a_mutated_message_is_refused_or_gives_what_was_sent() -> None:
    rng, good = random.Random(2), pack_rollout(rollout(1))
    for _ in range(300):
        with contextlib.suppress(FormatError):
            assert same(unpack_rollout(flip_bytes(good, rng), max_bytes=MAX_BYTES), 1)
