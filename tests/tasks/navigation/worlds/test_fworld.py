"""The .fworld file: bit for bit, checked when read."""

from pathlib import Path

import numpy as np
import pytest

from fledge.core.errors import FledgeError, FormatError, InputError, MemoryBudgetError
from fledge.storage import save_checkpoint
from fledge.storage.checkpoint import stage_now
from fledge.storage.format.writer import write_native
from fledge.tasks.navigation.worlds.world import World, load_world, save_world


def made(triangles: bool = True) -> World:
    rng = np.random.default_rng(8)
    surface = rng.normal(size=(7, 3, 3)).astype(np.float32) if triangles else None
    return World(
        "höhle 1", rng.random((13, 7, 5)) < 0.3, np.array([-1.25, 1 / 3, 0.0]), 0.07, surface, ["A guess.", "Zwei."]
    )


@pytest.mark.parametrize("triangles", [True, False])
def test_a_world_comes_back_bit_for_bit(tmp_path: Path, triangles: bool) -> None:
    world, path = made(triangles), tmp_path / "a folder" / "x.fworld"
    save_world(world, path)
    again = load_world(path)
    assert (again.name, again.cell_m, again.notes) == (world.name, world.cell_m, world.notes)
    for name in ("solid", "origin", "triangles"):
        old, new = getattr(world, name), getattr(again, name)
        assert (old is None) == (new is None)
        if old is not None:
            assert old.dtype == new.dtype
            assert new.flags.c_contiguous
            np.testing.assert_array_equal(old, new)
    save_world(again, tmp_path / "y.fworld")
    assert (tmp_path / "y.fworld").read_bytes() == path.read_bytes()


def test_a_large_world_is_compact(tmp_path: Path) -> None:
    solid = np.zeros((500, 500, 60), bool)
    solid[:, :, 0] = True
    solid[100:110, 100:400] = True
    save_world(World("hall", solid, np.zeros(3)), tmp_path / "x.fworld")
    assert (tmp_path / "x.fworld").stat().st_size < 50_000
    np.testing.assert_array_equal(load_world(tmp_path / "x.fworld").solid, solid)


def test_bounds_are_the_corners_of_the_voxels() -> None:
    low, high = World("x", np.zeros((2, 3, 4), bool), np.array([1.0, 2.0, 3.0]), 0.5).bounds
    assert low.tolist() == [1.0, 2.0, 3.0]
    assert high.tolist() == [2.0, 3.5, 5.0]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.fworld"
    save_world(made(), path)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 0x10
        path.write_bytes(changed)
        try:
            again = load_world(path)
        except FledgeError:
            continue
        np.testing.assert_array_equal(again.solid, made().solid)  # a byte that nothing depends on, such as a date
    for length in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(FledgeError):
            load_world(path)


def forged(path: Path, **changes: object) -> Path:
    state = {"name": "x", "cell_m": 0.1, "origin": np.zeros(3), "shape": [2, 2, 2], "bits": np.zeros(1, np.uint8)}
    state |= {"triangles": None, "notes": []} | changes
    node, leaves = stage_now({key: value for key, value in state.items() if value is not ...})
    with open(path, "wb") as stream:
        write_native(stream, node, leaves, metadata={"kind": "fledge-world", "version": 1})
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2, 2, 9]},
        {"shape": [0, 2, 2]},
        {"shape": [2, 2]},
        {"shape": "222"},
        {"bits": ...},
        {"bits": np.zeros(1, np.int8)},
        {"bits": None},
        {"origin": np.zeros(2)},
        {"origin": np.array([0.0, np.nan, 0.0])},
        {"cell_m": 0.0},
        {"cell_m": "small"},
        {"name": 3},
        {"notes": [1]},
        {"triangles": np.zeros((4, 3), np.float32)},
        {"triangles": np.zeros((4, 3, 3), np.float64)},
        {"triangles": np.full((1, 3, 3), np.inf, np.float32)},
    ],
)
def test_an_impossible_world_is_refused(tmp_path: Path, changes: dict) -> None:
    load_world(forged(tmp_path / "good.fworld"))
    with pytest.raises((FormatError, InputError)):
        load_world(forged(tmp_path / "x.fworld", **changes))


def test_a_small_file_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="check the scale"):
        load_world(forged(tmp_path / "x.fworld", shape=[2**20, 2**20, 2**20]))
    with pytest.raises(MemoryBudgetError, match="at most 7 are allowed"):
        load_world(forged(tmp_path / "y.fworld"), max_bytes=7)


def test_a_checkpoint_is_not_a_world(tmp_path: Path) -> None:
    path = save_checkpoint({"a": 1}, tmp_path / "x.fledge")
    path.rename(tmp_path / "x.fworld")
    with pytest.raises(FormatError, match="not a world"):
        load_world(tmp_path / "x.fworld")
