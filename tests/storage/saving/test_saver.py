"""AsyncCheckpointSaver: a snapshot of the call's moment, nothing lost, nothing silent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.storage import AsyncCheckpointSaver, load_checkpoint
from fledge.storage.format.flattening import flatten
from fledge.storage.saving import pipeline as pipeline_module
from fledge.storage.saving import saver as saver_module
from fledge.storage.saving import staging_buffer
from fledge.storage.saving.staging import split
from tests.storage.states import assert_same, awkward_state, copy_state, state_at, train_step, training


@pytest.fixture
def saver() -> Iterator[AsyncCheckpointSaver]:
    with AsyncCheckpointSaver() as made:
        yield made


class Gate:
    """Holds the background writer until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        real = saver_module.write_state

        def held(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            assert self.open.wait(60)
            return real(*args, **kwargs)

        monkeypatch.setattr(saver_module, "write_state", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open.set()


def scramble(value: Any) -> None:
    """Change every tensor and array in place, and every container."""
    if isinstance(value, torch.Tensor) and value.numel():
        with torch.no_grad():
            raw = value.untyped_storage()
            torch.frombuffer(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * raw.nbytes()).from_address(raw.data_ptr())),
                             dtype=torch.uint8).bitwise_xor_(0x5A)  # fmt: skip
    elif isinstance(value, np.ndarray) and value.size:
        raw_bytes = value.base if isinstance(value.base, np.ndarray) else value
        raw_bytes.reshape(-1, order="A").view(np.uint8)[:] ^= 0x5A
    elif isinstance(value, dict):
        for item in value.values():
            scramble(item)
        value.clear()
    elif isinstance(value, list | tuple):
        for item in value:
            scramble(item)
        if isinstance(value, list):
            value.clear()


def test_a_change_right_after_the_call_is_not_in_the_file(
    saver: AsyncCheckpointSaver, tmp_path: Path, gate: Gate
) -> None:
    state = awkward_state()
    expected = copy_state(state)
    handle = saver.save_async(state, tmp_path / "a.pt")
    assert handle.staged
    scramble(state)
    gate.open.set()
    assert_same(load_checkpoint(handle.wait(60)), expected)


def test_training_on_right_after_the_call_does_not_show(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    model, optimizer = training()
    saver.attach(optimizer)
    expected = []
    for i in range(8):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "i": i, "seen": np.full(5, i)}
        expected.append(copy_state(state))
        saver.save_async(state, tmp_path / f"{i}.pt")
        state["seen"][:] = -1
        train_step(model, optimizer)  # weights, Adam's moments and steps, batch-norm's statistics: all in place
    assert saver.drain(60)
    for i, state in enumerate(expected):
        assert_same(load_checkpoint(tmp_path / f"{i}.pt"), state)


def test_without_an_optimiser_everything_is_staged_before_the_call_returns(
    saver: AsyncCheckpointSaver, tmp_path: Path, gate: Gate
) -> None:
    model, _ = training()
    handle = saver.save_async(model.state_dict(), tmp_path / "a")
    assert handle.staged
    assert not handle.durable


class SlowStager:
    """Holds staging in the background until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        real = pipeline_module.Stager.copy

        def held(stager: Any, *arguments: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                assert self.open.wait(60)
            real(stager, *arguments)

        monkeypatch.setattr(pipeline_module.Stager, "copy", held)


def test_a_step_of_an_attached_optimiser_waits_for_staging(
    saver: AsyncCheckpointSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = training()
    saver.attach(optimizer)
    slow = SlowStager(monkeypatch)
    expected = copy_state(model.state_dict())
    handle = saver.save_async(model.state_dict(), tmp_path / "a")
    assert not handle.staged  # parameters are still being copied, and the call has returned
    stepped = threading.Event()
    thread = threading.Thread(target=lambda: (train_step(model, optimizer), stepped.set()))
    thread.start()
    assert not stepped.wait(0.3)
    slow.open.set()
    assert stepped.wait(60)
    thread.join()
    assert_same({k: v for k, v in load_checkpoint(handle.wait(60)).items() if "running" not in k and "num" not in k},
                {k: v for k, v in expected.items() if "running" not in k and "num" not in k})  # fmt: skip


def test_what_no_optimiser_owns_is_copied_at_once(
    saver: AsyncCheckpointSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = training()
    saver.attach(optimizer)
    slow = SlowStager(monkeypatch)
    first = next(model.parameters())
    flat = torch.randn(500)
    aliased = torch.nn.Parameter(flat[:100])
    other = torch.optim.SGD([aliased], lr=0.1)
    saver.attach(other)
    state = {"model": model.state_dict(), "buffer": torch.ones(5), "array": first.detach().numpy()[:2], "flat": flat}
    expected = copy_state(state)
    handle = saver.save_async(state, tmp_path / "a")
    state["buffer"].zero_()
    flat[100:] = 0  # longer than the parameter that starts at the same byte
    model[1].running_mean.fill_(7)  # a buffer: no step of an optimiser fences it
    slow.open.set()
    assert_same(load_checkpoint(handle.wait(60)), expected)


def test_fence_waits_until_parameters_may_be_changed_by_hand(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    model, optimizer = training(width=300)
    saver.attach(optimizer)
    expected = copy_state(model.state_dict())
    handle = saver.save_async(model.state_dict(), tmp_path / "a")
    saver.fence()
    assert handle.staged
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_same(load_checkpoint(handle.wait(60)), expected)


def test_staging_buffers_are_reused(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    for i in range(6):
        saver.save_async(state_at(i), tmp_path / str(i)).wait(60)
    assert saver.get_stats()["buffer_bytes"] < 2 * 4 * 40_100


def test_the_handle_passes_two_stages(saver: AsyncCheckpointSaver, tmp_path: Path, gate: Gate) -> None:
    handle = saver.save_async(state_at(1), tmp_path / "a.pt", metadata={"iteration": 1})
    assert handle.wait_staged(60)
    assert gate.reached.wait(60)
    assert (handle.status, handle.durable, handle.done) == ("writing", False, False)
    with pytest.raises(StorageError, match="still writing"):
        handle.wait(0.01)
    gate.open.set()
    assert handle.wait(60) == tmp_path / "a.pt.fledge"
    assert handle.durable


def fill(saver: AsyncCheckpointSaver, folder: Path, gate: Gate, count: int) -> list[Any]:
    """One checkpoint in writing and `count` waiting."""
    handles = [saver.save_async(state_at(0), folder / "0")]
    assert gate.reached.wait(60)
    return [*handles, *(saver.save_async(state_at(i), folder / str(i)) for i in range(1, count + 1))]


def test_a_full_queue_waits_and_says_so(tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with AsyncCheckpointSaver(max_queue_size=2) as saver:
        fill(saver, tmp_path, gate, 2)
        threading.Timer(0.2, gate.open.set).start()
        with caplog.at_level(logging.WARNING):
            saver.save_async(state_at(3), tmp_path / "3")
        assert "2 checkpoints wait to be written: waiting" in caplog.text
        assert saver.get_stats()["waits"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{i}.fledge" for i in range(4)]


def test_a_full_queue_can_drop_the_oldest(tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with AsyncCheckpointSaver(max_queue_size=2, full_queue="drop_oldest") as saver:
        handles = fill(saver, tmp_path, gate, 2)
        newest = saver.save_async(state_at(3), tmp_path / "3")
        assert [handle.status for handle in handles] == ["writing", "dropped", "queued"]
        assert "dropped" in caplog.text
        gate.open.set()
        assert_same(load_checkpoint(newest.wait(60)), state_at(3))
        with pytest.raises(StorageError, match="dropped"):
            handles[1].wait(60)
        assert saver.get_stats()["dropped"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.fledge", "2.fledge", "3.fledge"]


def test_a_full_queue_can_skip_the_new_one(tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with AsyncCheckpointSaver(max_queue_size=1, full_queue="skip") as saver:
        fill(saver, tmp_path, gate, 1)
        handle = saver.save_async(state_at(3), tmp_path / "3")
        assert handle.status == "skipped"
        assert "skipped" in caplog.text
        assert saver.get_stats()["skipped"] == 1
        gate.open.set()


def test_shutdown_with_a_full_queue_loses_nothing(tmp_path: Path, gate: Gate) -> None:
    saver = AsyncCheckpointSaver(max_queue_size=3)
    fill(saver, tmp_path, gate, 3)
    assert saver.shutdown(timeout=0.05) is False
    gate.open.set()
    assert saver.shutdown() is True
    for i in range(4):
        assert_same(load_checkpoint(tmp_path / str(i)), state_at(i))
    with pytest.raises(StorageError, match="shut down"):
        saver.save_async(state_at(1), tmp_path / "x")


def test_an_error_surfaces_at_the_next_call_and_in_the_stats(
    saver: AsyncCheckpointSaver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    handle = saver.save_async(state_at(1), tmp_path / "file" / "a")
    saver.drain(60)
    assert handle.status == "failed"
    good = saver.save_async(state_at(2), tmp_path / "b")  # training goes on
    assert "an earlier checkpoint was not saved" in caplog.text
    good.wait(60)
    stats = saver.get_stats()
    assert (stats["failures"], stats["saves"]) == (1, 1)
    assert "could not be written" in stats["last_error"]
    with pytest.raises(StorageError, match="could not be written"):
        handle.wait(60)


def test_an_error_can_be_raised_at_the_next_call(tmp_path: Path) -> None:
    saver = AsyncCheckpointSaver(on_error="raise")
    (tmp_path / "file").write_text("in the way")
    saver.save_async(state_at(1), tmp_path / "file" / "a")
    saver.drain(60)
    with pytest.raises(StorageError, match="an earlier checkpoint was not saved"):
        saver.save_async(state_at(2), tmp_path / "b")
    saver.save_async(state_at(2), tmp_path / "b")
    assert saver.shutdown()


def test_a_state_that_cannot_be_saved_is_refused_at_the_call(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\['x'\] is a object"):
        saver.save_async({"x": object()}, tmp_path / "a")
    with pytest.raises(InputError, match="metadata holds a tensor"):
        saver.save_async(state_at(1), tmp_path / "a", metadata={"x": torch.ones(1)})
    saver.save_async(state_at(1), tmp_path / "b").wait(60)


def test_what_a_killed_process_left_is_removed(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    (tmp_path / ".fledge-tmp-1-dead").write_bytes(b"half a file")
    saver.save_async(state_at(1), tmp_path / "a").wait(60)
    assert [path.name for path in tmp_path.iterdir()] == ["a.fledge"]


@pytest.mark.gpu
def test_cuda_tensors_are_staged_through_pinned_buffers(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(1000, 1000, device="cuda"))
    optimizer = torch.optim.Adam([weight])
    saver.attach(optimizer)
    for i in range(5):
        weight.grad = torch.randn_like(weight)
        expected = weight.detach().cpu().clone()
        handle = saver.save_async({"w": weight, "t": weight.detach().t()}, tmp_path / str(i))
        optimizer.step()
        assert_same(load_checkpoint(handle.wait(60)), {"w": expected, "t": expected.t().contiguous()})


def test_stats_say_what_was_saved(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    assert saver.get_stats()["ratio"] is None
    handles = [saver.save_async(state_at(i), tmp_path / str(i)) for i in range(3)]
    sizes = [handle.wait(60).stat().st_size for handle in handles]
    stats = saver.get_stats()
    assert (stats["saves"], stats["failures"], stats["queue_size"]) == (3, 0, 0)
    assert stats["bytes_out"] == sum(sizes)
    assert stats["bytes_in"] == 3 * 4 * (40_000 + 8)
    assert stats["ratio"] == stats["bytes_out"] / stats["bytes_in"]
    assert 0 < stats["stall_p50_ms"] <= stats["stall_p99_ms"]
    assert stats["age_s"] >= 0
    assert stats["last_error"] is None


@pytest.mark.parametrize(
    ("codec", "compress", "name"),
    [
        ("native", True, "a.pt.fledge"), ("native", False, "a.pt"), ("lz4", True, "a.pt.lz4"), ("lz4", False, "a.pt"),
        ("pt", True, "a.pt"), ("safetensors", True, "a.pt.safetensors"),
    ],
)  # fmt: skip
def test_every_format_is_written_and_found_by_its_name(tmp_path: Path, codec: str, compress: bool, name: str) -> None:
    with AsyncCheckpointSaver(codec=codec) as saver:
        path = saver.save_async(state_at(1), tmp_path / "a.pt", compress=compress).wait(60)
    assert path == tmp_path / name
    assert_same(load_checkpoint(path if codec == "safetensors" else tmp_path / "a.pt"), state_at(1))


def test_one_file_may_have_another_format_than_the_others(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    path = saver.save_async(state_at(1), tmp_path / "a.pt", codec="lz4").wait(60)
    assert path == tmp_path / "a.pt.lz4"
    assert saver.save_async(state_at(2), tmp_path / "b.pt").wait(60).name == "b.pt.fledge"
    assert_same(load_checkpoint(path), state_at(1))


def test_a_delta_can_be_saved_in_the_background(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    model, optimizer = training(width=200)
    first = saver.save_async({"model": model.state_dict()}, tmp_path / "0").wait(60)
    train_step(model, optimizer, 200)
    expected = copy_state(model.state_dict())
    second = saver.save_async({"model": model.state_dict()}, tmp_path / "1", base=first).wait(60)
    assert second.stat().st_size < first.stat().st_size
    assert_same(load_checkpoint(second), {"model": expected})


@pytest.mark.parametrize(
    "bad",
    [{"max_queue_size": 0}, {"full_queue": "block"}, {"on_error": "x"}, {"codec": "zip"}, {"compression_level": 99}],
)
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AsyncCheckpointSaver(**bad)


def test_verbose_prints_a_line_per_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with AsyncCheckpointSaver(verbose=True) as saver:
        saver.save_async(state_at(1), tmp_path / "a")
    assert "[Checkpoint]" in capsys.readouterr().out


def test_close_saves_are_packed_quicker_and_rare_ones_denser(
    saver: AsyncCheckpointSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"a": 0.02 * torch.randn(100_000, generator=torch.Generator().manual_seed(0))}

    def stored(name: str) -> int:
        path = saver.save_async(state, tmp_path / name).path
        assert saver.drain(60)
        assert_same(load_checkpoint(path), state)
        return path.stat().st_size

    monkeypatch.setattr(pipeline_module, "BUSY_SHARE", 0.0)  # as if any work were too much
    monkeypatch.setattr(pipeline_module, "IDLE_SHARE", 0.0)
    sizes = [stored(f"{i}") for i in range(5)]
    assert sizes[0] == sizes[1]  # one save alone says nothing
    assert sizes[1] < sizes[2] < sizes[3] < sizes[4]
    assert sizes[4] > 400_000  # as it is
    monkeypatch.setattr(pipeline_module, "BUSY_SHARE", 1e9)
    monkeypatch.setattr(pipeline_module, "IDLE_SHARE", 1e9)  # as if it were next to nothing
    monkeypatch.setattr(pipeline_module, "IDLE_SAVES", 2)
    assert [stored(f"{i}") for i in range(7)] == [sizes[i] for i in (4, 4, 3, 3, 2, 2, 1)]


def test_only_what_an_attached_optimiser_owns_is_copied_later() -> None:
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 50)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    now, later, watched = split(flatten(state)[1], [])
    assert len(now) == 8
    assert not later
    now, later, watched = split(flatten(state)[1], [optimizer])
    assert not now
    assert len(watched) == len(later) == 8


def test_a_state_that_something_else_changes_while_it_is_copied_is_not_saved_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.Adam(model.parameters())
    copying, go = threading.Event(), threading.Event()
    with AsyncCheckpointSaver() as saver:
        saver.attach(optimizer)
        model(torch.ones(1, 50)).sum().backward()
        optimizer.step()
        right = saver._pipeline.stager.copy

        def copy(leaves: Any, arena: Any, events: Any) -> None:
            if threading.current_thread().name == "fledge-stage":
                copying.set()
                go.wait(30)
            right(leaves, arena, events)

        monkeypatch.setattr(saver._pipeline.stager, "copy", copy)
        handle = saver.save_async({"optimizer": optimizer.state_dict()}, tmp_path / "x.pt")
        assert copying.wait(30)
        for state in optimizer.state.values():
            state["exp_avg"].zero_()
        go.set()
        with pytest.raises(StorageError, match="Call fence"):
            handle.wait(30)
        assert saver.get_stats()["failures"] == 1
    assert not list(tmp_path.iterdir())


def prepared(saver: AsyncCheckpointSaver, nbytes: int) -> None:
    """Wait until the saver has prepared at least `nbytes`."""
    pipeline = saver._pipeline
    with pipeline.changed:
        assert pipeline.changed.wait_for(lambda: pipeline.free and pipeline.free[0]._prepared >= nbytes, 30)


def test_memory_is_prepared_while_the_model_is_built_and_the_first_save_uses_it(tmp_path: Path) -> None:
    with AsyncCheckpointSaver() as saver:
        model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(2)])
        nbytes = 2 * (1000 * 1000 + 1000) * 4
        prepared(saver, 3 * nbytes)
        buffer = saver._pipeline.free[0]
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        want = [leaf.source.clone() for leaf in flatten(state)[1]]
        saver.save_async(state, tmp_path / "x.pt")
        with torch.no_grad():
            model[0].weight.data.zero_()
        assert saver._pipeline.buffers == [buffer]
        assert 3 * nbytes <= saver.get_stats()["buffer_bytes"] <= 3 * nbytes + 2**22
        saver.drain()
        assert all(map(torch.equal, want, [leaf.source for leaf in flatten(load_checkpoint(tmp_path / "x.pt"))[1]]))
        torch.nn.Linear(2000, 2000)  # after the first save, nothing more is prepared
        assert saver._pipeline._to_prepare == 0


def test_a_model_that_was_there_first_has_memory_prepared_at_its_first_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(500, 500)
    optimizer = torch.optim.Adam(model.parameters())
    with AsyncCheckpointSaver() as saver:
        model(torch.ones(1, 500)).sum().backward()
        optimizer.step()
        prepared(saver, 3 * 4 * 500 * 501)


def test_memory_that_was_prepared_but_is_not_needed_is_returned(tmp_path: Path) -> None:
    with AsyncCheckpointSaver() as saver:
        torch.nn.Linear(2000, 2000)
        prepared(saver, 3 * 4 * 2000 * 2000)
        saver.save_async({"x": torch.ones(1000, 2000)}, tmp_path / "x.pt")
        assert saver.get_stats()["buffer_bytes"] == 2**23  # 8 MB in pages of 2 MiB
        saver.drain()
        assert torch.equal(load_checkpoint(tmp_path / "x.pt")["x"], torch.ones(1000, 2000))


def test_models_that_were_freed_do_not_count(tmp_path: Path) -> None:
    with AsyncCheckpointSaver() as saver:
        for _ in range(10):
            torch.nn.Linear(1000, 1000)  # 12 MB with Adam
        prepared(saver, 3 * 4 * 1000 * 1000)
        assert saver.get_stats()["buffer_bytes"] < 2 * 3 * 4 * 1000 * 1000


def test_a_module_that_cannot_be_hashed_is_built_all_the_same() -> None:
    class Unhashable(torch.nn.Linear):
        __hash__ = None  # type: ignore[assignment]

    with AsyncCheckpointSaver():
        Unhashable(10, 10)


def test_little_free_memory_is_not_filled_before_the_first_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "available_bytes", lambda device: 2**25)
    with AsyncCheckpointSaver() as saver:
        torch.nn.Linear(2000, 2000)  # 48 MB with Adam
        prepared(saver, 2**23)
        assert saver.get_stats()["buffer_bytes"] <= 2**24  # not far above a quarter of what is free


def test_shutdown_does_not_wait_for_memory_to_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    chunks: list[int] = []

    def write_pages(address: int, nbytes: int) -> None:
        chunks.append(nbytes)
        begun.set()
        go.wait(30)

    monkeypatch.setattr(staging_buffer, "_write_pages", write_pages)
    saver = AsyncCheckpointSaver()
    torch.nn.Linear(2000, 2000)
    assert begun.wait(30)
    saver._pipeline._closed = True  # as shutdown does
    go.set()
    assert saver.shutdown(30)
    assert len(chunks) == 1


def test_a_saver_that_is_shut_down_leaves_optimisers_alone() -> None:
    from torch.nn.modules.module import _global_parameter_registration_hooks as parameter_hooks
    from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

    before = len(hooks), len(parameter_hooks)
    saver = AsyncCheckpointSaver()
    assert (len(hooks), len(parameter_hooks)) == (before[0] + 1, before[1] + 1)
    saver.shutdown()
    assert (len(hooks), len(parameter_hooks)) == before
