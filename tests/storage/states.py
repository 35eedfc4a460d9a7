"""States to save in tests, and a comparison that sees every bit."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch


def bits(value: Any) -> bytes:
    """All bytes of a tensor, array or number."""
    if isinstance(value, torch.Tensor):
        return value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.asarray(value).tobytes()


def assert_same(got: Any, expected: Any, path: str = "state") -> None:
    """Fail unless two states are the same in structure, types and bits."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor), path
        assert (got.dtype, tuple(got.shape)) == (expected.dtype, tuple(expected.shape)), path
        assert bits(got) == bits(expected), path
    elif isinstance(expected, np.ndarray | np.generic):
        assert type(got) is type(expected), path
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), path
        assert bits(got) == bits(expected), path
    elif isinstance(expected, dict):
        assert type(got) is type(expected), path
        assert list(got) == list(expected), path
        for key in expected:
            assert_same(got[key], expected[key], f"{path}[{key!r}]")
        assert getattr(got, "_metadata", None) == getattr(expected, "_metadata", None), path
    elif isinstance(expected, list | tuple):
        assert type(got) is type(expected), path
        assert len(got) == len(expected), path
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert type(got) is float, path
        assert bits(got) == bits(expected), path
    else:
        assert type(got) is type(expected), path
        assert got == expected, path


def copy_state(value: Any) -> Any:
    """A copy that shares nothing."""
    if isinstance(value, torch.Tensor):
        return value.detach().resolve_conj().clone(memory_format=torch.contiguous_format)
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, item in value.items():
            copied[key] = copy_state(item)
        return copied
    if isinstance(value, list | tuple):
        return type(value)(copy_state(item) for item in value)
    return value


def awkward_state() -> dict[str, Any]:
    """One of everything that is known to go wrong."""
    torch.manual_seed(3)
    weight = torch.randn(40, 30)
    nan_bits = torch.tensor([0x7FC00001, 0x7F800001, -0x3FFFFF, 0x00000001, 0x007FFFFF, -0x80000000], dtype=torch.int32)
    base = np.arange(60, dtype=np.float64).reshape(6, 10)
    return {
        "tied": {"embedding": weight, "head": weight},
        "strided": {"t": weight.t(), "slice": torch.arange(100)[3:90:7], "expanded": torch.ones(1, 5).expand(4, 5)},
        "empty": [torch.zeros(0), torch.zeros(3, 0, 2), np.zeros((0, 4), np.int8)],
        "dtypes": {
            str(dtype): torch.randint(0, 2, (17,)).to(dtype)
            for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16)
        },
        "halves": torch.randn(257).to(torch.bfloat16),
        "complex": {
            "c64": torch.randn(9, dtype=torch.complex64),
            "conj": torch.randn(9, dtype=torch.complex128).conj(),
        },
        "unsigned": torch.tensor([1, 2**16 - 1], dtype=torch.uint16),
        "float8": torch.randn(33).to(torch.float8_e4m3fn),
        "nan payloads and subnormals": nan_bits.repeat(200).view(torch.float32),
        "scalar tensor": torch.tensor(7.5),
        "numpy": {"array": base, "view": base[::2, ::3], "fortran": np.asfortranarray(base), "0d": np.array(3.5)},
        "numpy scalars": [np.float32(1.5), np.int64(-3), np.bool_(True)],
        "numpy others": [
            np.array(["a", "bcd"]),
            np.array([b"xy"]),
            np.array(["2020-01-01"], "M8[D]"),
            base.astype(">f4"),
        ],
        "bytes": b"\x00\xffabc",
        "plain": [
            None,
            True,
            False,
            0,
            -1,
            2**63,
            -(2**80),
            1.5,
            -0.0,
            5e-324,
            math.inf,
            -math.inf,
            math.nan,
            "t\u00e9xt",
        ],
        "complex number": 1.5 - 2j,
        "tuple": (1, (2, [3, (torch.tensor([4]),)])),
        "odd keys": {0: "int", 1.5: "float", None: "none", True: "bool", (1, "a"): "tuple", "s": "str"},
        "": {"empty key": {}, "empty list": [], "empty tuple": ()},
        "../../etc/passwd": torch.ones(2),
        "manifest.json": torch.ones(3),
    }


def training(width: int = 48, seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small network and its Adam, one step into training."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train_step(model, optimizer, width)
    return model, optimizer


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, width: int = 48) -> None:
    """One update, which changes every parameter and all of Adam's state in place."""
    optimizer.zero_grad()
    model(torch.randn(16, width)).pow(2).mean().backward()
    optimizer.step()


def state_at(step: int, size: int = 20_000) -> dict[str, Any]:
    """A state that is a function of its step, so that any mix-up shows."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {"weight": torch.randn(size, generator=generator), "bias": torch.full((7,), float(step))},
        "optimizer": {
            "state": {0: {"exp_avg": torch.randn(size, generator=generator), "step": torch.tensor(float(step))}}
        },
        "step": step,
    }


def near_at(step: int, size: int = 20_000) -> dict[str, Any]:
    """The same, but one step's numbers are close to another's, as in training: so that deltas pay."""
    state, last = state_at(0, size), state_at(step, 7)
    state["model"]["weight"] += 1e-6 * step
    state["optimizer"]["state"][0]["exp_avg"] += 1e-6 * step
    state["optimizer"]["state"][0]["step"] = last["optimizer"]["state"][0]["step"]
    return state | {"model": {**state["model"], "bias": last["model"]["bias"]}, "step": step}
