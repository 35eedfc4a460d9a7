"""Tensors that are not what they seem: what has a meaning is saved, the rest refused before anything is written."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fledge.core.errors import InputError, StorageError
from fledge.storage import AsyncCheckpointSaver, load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[3]


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as quantisation libraries make them."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class Marked(torch.Tensor):
    """Plain memory, with something beside it."""

    unit: str


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(300)


def freed() -> torch.Tensor:
    tensor = torch.ones(300)
    tensor.untyped_storage().resize_(0)
    return tensor


def half_freed() -> torch.Tensor:
    tensor = torch.ones(300)
    tensor.untyped_storage().resize_(400)
    return tensor


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def marked() -> torch.Tensor:
    tensor = torch.ones(3).as_subclass(Marked)
    tensor.unit = "m"
    return tensor


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "wrapper": lambda: Wrapper(torch.ones(300)),
    "fake": fake,
    "functional": lambda: torch._to_functional_tensor(torch.ones(300)),
    "freed": freed,
    "half freed": half_freed,
    "nested": nested,
    "uninitialized": lambda: torch.nn.LazyLinear(3).weight,
    "marked": marked,
    "sparse": lambda: torch.ones(3, 3).to_sparse(),
    "meta": lambda: torch.ones(3, device="meta"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_without_numbers_to_read_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    state = {"good": torch.ones(4), "bad": REFUSED[name]()}
    with pytest.raises(InputError, match=r"\['bad'\].*:"):
        save_checkpoint(state, tmp_path / "a")
    with AsyncCheckpointSaver(handle_signals=False) as saver, pytest.raises(InputError):
        saver.save_async(state, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_inside_a_transform_a_tensor_is_refused(tmp_path: Path) -> None:
    def save(row: torch.Tensor) -> torch.Tensor:
        with pytest.raises(InputError, match="belongs to a trace or transform"):
            save_checkpoint({"row": row}, tmp_path / "a")
        return row

    torch.vmap(save)(torch.ones(3, 2))
    assert list(tmp_path.iterdir()) == []


def test_subclasses_and_zeros_that_mean_plain_numbers_are_saved_as_these(tmp_path: Path) -> None:
    class Plain(torch.Tensor):
        pass

    zeros = torch._efficientzerotensor((300,))  # as autograd makes them: data_ptr() is 0
    state = {"plain": torch.arange(5.0).as_subclass(Plain), "zeros": zeros, "buffer": torch.nn.Buffer(torch.ones(2))}
    loaded = load_checkpoint(save_checkpoint(state, tmp_path / "a"))
    assert all(type(value) is torch.Tensor for value in loaded.values())
    assert torch.equal(loaded["plain"], torch.arange(5.0))
    assert torch.equal(loaded["zeros"], torch.zeros(300))


def test_a_memory_mapped_tensordict_entry_is_saved(tmp_path: Path) -> None:
    from tensordict import MemoryMappedTensor

    mapped = MemoryMappedTensor.from_tensor(torch.arange(7.0), filename=str(tmp_path / "memory"))
    assert torch.equal(load_checkpoint(save_checkpoint({"x": mapped}, tmp_path / "a"))["x"], torch.arange(7.0))


@pytest.mark.parametrize("change", ["half", "to", "set_data", "swap"])
def test_parameters_replaced_after_an_attached_save_are_saved_as_they_were(tmp_path: Path, change: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(700, 700)
    expected = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with AsyncCheckpointSaver(handle_signals=False) as saver:
        saver.attach(optimizer)
        handles = [saver.save_async(dict(net.named_parameters()), tmp_path / str(i)) for i in range(3)]
        if change == "half":
            net.half()
        elif change == "to":
            net.to(torch.float64)
        elif change == "set_data":
            net.weight.data = torch.zeros(1)
        else:
            torch.utils.swap_tensors(net.weight, torch.nn.Parameter(torch.zeros(2)))
        for handle in handles:
            loaded = load_checkpoint(handle.wait(60))
            assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_memory_freed_before_it_was_copied_fails_that_save_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from fledge.storage.saving.staging import Stager

    go, real = threading.Event(), Stager.copy

    def late(self: Stager, leaves: Any, *rest: Any) -> None:
        if threading.current_thread().name == "fledge-stage":
            go.wait(30)
        real(self, leaves, *rest)

    monkeypatch.setattr(Stager, "copy", late)
    weight = torch.nn.Parameter(torch.ones(1000))
    with AsyncCheckpointSaver(handle_signals=False) as saver:
        saver.attach(torch.optim.SGD([weight], lr=0.1))
        handle = saver.save_async({"w": weight}, tmp_path / "a")
        weight.untyped_storage().resize_(0)
        go.set()
        with pytest.raises(InputError, match="freed or resized before it was copied"):
            handle.wait(60)
        saver.save_async({"w": torch.ones(3)}, tmp_path / "b").wait(60)
        saver.report()
    assert [path.name for path in tmp_path.iterdir()] == ["b.fledge"]


def test_a_change_behind_an_attached_optimizer_fails_the_save_in_place_of_tearing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from fledge.storage.saving.staging import Stager

    go, real = threading.Event(), Stager.copy

    def late(self: Stager, leaves: Any, *rest: Any) -> None:
        real(self, leaves, *rest)
        if threading.current_thread().name == "fledge-stage":
            go.wait(30)

    monkeypatch.setattr(Stager, "copy", late)
    weight = torch.nn.Parameter(torch.ones(1000))
    with AsyncCheckpointSaver(handle_signals=False) as saver:
        saver.attach(torch.optim.SGD([weight], lr=0.1))
        handle = saver.save_async({"w": weight}, tmp_path / "a")
        with torch.no_grad():
            weight.add_(1)
        go.set()
        with pytest.raises(StorageError, match="Call fence"):
            handle.wait(60)
        saver.report()


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.array([[1, 2]]).view(np.matrix),
        np.bytes_(b"a\0"),
        np.str_("a\0"),
    ],
)
def test_what_numpy_would_lose_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"only the numbers would be kept|which NumPy drops"):
        save_checkpoint({"x": array}, tmp_path / "a")


def test_a_numpy_memmap_is_an_array(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "memory", np.float32, "w+", shape=(5,))
    mapped[:] = range(5)
    assert np.array_equal(load_checkpoint(save_checkpoint({"x": mapped}, tmp_path / "a"))["x"], np.arange(5.0))


SHARDED = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from fledge.core.errors import InputError
from fledge.storage import AsyncCheckpointSaver, load_checkpoint, save_checkpoint
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
mesh = init_device_mesh("cpu", (size,))
torch.manual_seed(0)
plain = torch.nn.Linear(10, 6)
whole = {name: value.detach().clone() for name, value in plain.state_dict().items()}
net = fully_shard(plain, mesh=mesh)
assert all(isinstance(value, DTensor) for value in net.state_dict().values())
optimizer = torch.optim.Adam(net.parameters())
replicated = distribute_tensor(torch.arange(4.0), mesh, [Replicate()])
assert torch.equal(load_checkpoint(save_checkpoint({"x": replicated}, f"{folder}/same{rank}"))["x"], torch.arange(4.0))
summed = DTensor.from_local(torch.ones(3), mesh, [Partial()])
if size > 1:
    for choice, reason in ((None, "sharded over 2 ranks"), ("local", "whole of nothing")):
        try:
            save_checkpoint({"x": net.state_dict() if choice is None else summed}, f"{folder}/refused{rank}", dtensor=choice)
        except InputError as error:
            assert choice is not None or reason in str(error), error
        else:
            raise SystemExit("not refused")
path = save_checkpoint({"x": summed}, f"{folder}/summed{rank}", dtensor="full")
assert torch.equal(load_checkpoint(path)["x"], torch.full((3,), float(size)))
for choice in ("full", "local"):
    with AsyncCheckpointSaver(dtensor=choice, handle_signals=False) as saver:
        saver.attach(optimizer)
        kept = {n: v.to_local().clone() for n, v in net.state_dict().items()} if choice == "local" else whole
        path = saver.save_async({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/{choice}{rank}")
        net.half()  # replaces the parameters before anything is staged
        net.float()
        loaded = load_checkpoint(path)["model"]
        assert all(type(value) is torch.Tensor and torch.equal(value, kept[name]) for name, value in loaded.items()), choice
dist.destroy_process_group()
print("done")
"""


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_fsdp2_and_dtensor_states_are_saved_whole_or_by_part(tmp_path: Path, size: int) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SHARDED, str(rank), str(size), str(tmp_path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    for process in running:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-2000:]
        assert output.splitlines()[-1] == "done"
