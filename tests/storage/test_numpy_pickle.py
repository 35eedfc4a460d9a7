"""LZ4 frames around pickled NumPy arrays are read; hostile ones run nothing and are one FormatError."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import torch

from fledge.core.errors import FormatError
from fledge.storage import RolloutStorage, load_checkpoint
from fledge.storage.format.numpy_pickle import read_numpy_pickle

ARRAYS = {
    "float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    "transposed": np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(1, 0, 2),
    "big-endian": np.arange(4, dtype=">f8"),
    "bool": np.array([True, False]),
    "half": np.ones((1, 2, 3), np.float16),
    "complex": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0, 4), np.uint8),
    "number": np.array(3.5),
}


class Attack:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_arrays_and_plain_values_come_back(protocol: int) -> None:
    tree = {
        **ARRAYS,
        ("a", "b"): [1, -2, 2**40, 0.5, None, True, b"x", "text", (1, 2, 3, 4)],
        "scalar": np.float32(2.5),
    }
    found = read_numpy_pickle(pickle.dumps(tree, protocol=protocol), "x")
    assert found.keys() == tree.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array), name
        assert found[name].dtype == array.dtype.newbyteorder("="), name
        assert found[name].flags.writeable, name
    assert found["a", "b"] == tree["a", "b"]
    assert found["scalar"] == 2.5


def test_an_array_under_two_keys_comes_back_twice() -> None:
    array = np.arange(1000.0)
    found = read_numpy_pickle(pickle.dumps({"a": array, "b": array, "c": {"d": array}}), "x")
    assert np.array_equal(found["a"], found["c"]["d"])


def laughs() -> Any:
    level: Any = ["ha"]
    for _ in range(30):
        level = [level] * 10
    return level


def cycle() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def shared_bytes() -> bytes:
    """Return a pickle of 300 arrays over the same megabyte."""
    data = b"B" + struct.pack("<I", 2**20) + bytes(2**20)
    array = pickle.dumps(np.zeros(2**20, np.uint8), protocol=3)[2:-1]  # without PROTO and STOP
    assert data in array
    later = array.replace(data, b"h\xfe")  # BINGET instead of the bytes
    return b"\x80\x03]" + data + b"q\xfea" + (later + b"a") * 300 + b"."


HOSTILE: dict[str, Any] = {
    "os.system": Attack(os.system, "touch HACKED"),
    "nested": {"a": [{"b": (Attack(os.system, "touch HACKED"),)}]},
    "eval": Attack(eval, "open('HACKED', 'w')"),
    "open": {"a": Attack(open, "HACKED", "w")},
    "bytearray": {"a": Attack(bytearray, 10**12)},
    "numpy.zeros": {"a": Attack(np.zeros, (10**12,))},
    "numpy.load": {"a": Attack(np.load, "x.npy")},
    "objects": {"a": np.array([Attack(os.system, "touch HACKED")], dtype=object)},
    "plain objects": {"a": np.array([{}, None], dtype=object)},
    "text array": {"a": np.array(["abc"])},
    "structured": {"a": np.zeros(2, dtype=[("x", "f4"), ("y", "i4")])},
    "dates": {"a": np.zeros(2, dtype="M8[s]")},
    "class": {"a": np.ndarray},
    "number as key": {3: np.zeros(2)},
    "set": {"a": {1, 2}},
    "path": {"a": Path("x")},
    "laughs": {"a": laughs()},
    "cycle": {"a": cycle()},
    "torch": {"a": torch.zeros(2)},
}
WHOLE = pickle.dumps({"a": np.arange(100, dtype=np.float32)}, protocol=4)
BYTES: dict[str, bytes] = {
    "declared size": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.",
    "declared text": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"abc.",
    "declared bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
    "memo place": b"\x80\x04}r\xff\xff\xff\xffj\xfe\xff\xff\xff.",
    "shape": WHOLE.replace(b"Kd", b"K\xc8"),
    "one array for many": shared_bytes(),
    "no end": WHOLE[:-1],
    "empty": b"\x80\x04",
    "stack": b"\x80\x04.",
    "marks": b"\x80\x04u.",
    "global without name": b"\x80\x04cos\n\n.",
    "extension": b"\x80\x04\x82\x01.",
    "persistent": b"\x80\x04K\x01Q.",
    "instance": b"\x80\x04(ios\nsystem\n.",
    "new object": b"\x80\x04cnumpy\nndarray\n)\x81.",
    "state of a function": b"\x80\x04cnumpy\nndarray\n}X\x01\x00\x00\x00aK\x01sb.",
    "call of ndarray": b"\x80\x04cnumpy\nndarray\nK\x01\x85R.",
    "array without content": b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n)R.",
}


@pytest.mark.parametrize("content", [*map(pickle.dumps, HOSTILE.values()), *BYTES.values()], ids=[*HOSTILE, *BYTES])
def test_a_hostile_pickle_runs_nothing_and_is_one_error(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fledge.storage.format.numpy_pickle.MAX_OPCODES", 2**14)  # reached in less time
    (tmp_path / "rollout_000001.lz4").write_bytes(lz4.frame.compress(content))
    with pytest.raises(FormatError):
        read_numpy_pickle(content, "x")
    with pytest.raises(FormatError):
        RolloutStorage(tmp_path).load(1)
    with pytest.raises(FormatError):
        load_checkpoint(tmp_path / "rollout_000001.lz4")
    assert not (tmp_path / "HACKED").exists()


def test_every_truncation_is_an_error() -> None:
    for end in range(len(WHOLE)):
        with pytest.raises(FormatError):
            read_numpy_pickle(WHOLE[:end], "x")


def test_every_changed_byte_is_an_error_or_plain_data() -> None:
    for place in range(0, len(WHOLE) - 400):
        for value in (0, 1, 40, 82, 98, 255):
            changed = WHOLE[:place] + bytes([value]) + WHOLE[place + 1 :]
            try:
                found = read_numpy_pickle(changed, "x")
            except FormatError:
                continue
            assert isinstance(found, dict | list | tuple | str | int | float | bytes | bytearray | np.ndarray | None)
