"""Tables in files: shipped, kept, damaged, of another physics, by two processes at once, where nothing can be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fledge.core.warp_start import start_warp
from fledge.tasks.aircombat.config import AircombatConfig, FighterConfig, MissileConfig
from fledge.tasks.aircombat.physics.structs import physics_of
from fledge.tasks.aircombat.spacetime import store
from fledge.tasks.aircombat.spacetime.build import SHAPE, Ranges

start_warp()
OTHER = AircombatConfig(load_limits=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fledge"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tables are not solved here, but counted; each has its number as all its ranges."""
    count: list[int] = []

    def build(*_: object) -> Ranges:
        count.append(1)
        return np.full((*SHAPE, 4), 1000.0 * len(count), np.float32), np.full((*SHAPE, 4), 500.0, np.float32)

    monkeypatch.setattr(store, "build_table", build)
    return count


def number_of(cfg: AircombatConfig) -> float:
    return float(store.find_ranges(physics_of(cfg), quiet=True)[0].flat[0]) / 1000


def test_the_table_of_the_default_physics_is_shipped(folder: Path, built: list[int]) -> None:
    store.find_ranges(physics_of(AircombatConfig(num_envs=4, max_episode_s=99.0)), quiet=True)
    assert not built
    assert not folder.exists()
    assert store.SHIPPED.stat().st_size < 1_000_000


def test_a_table_is_built_once_and_kept(folder: Path, built: list[int]) -> None:
    assert number_of(OTHER) == 1
    assert number_of(OTHER) == 1
    assert len(built) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "changed",
    [
        AircombatConfig(load_limits=False, rudder_rate=1.0),
        AircombatConfig(load_limits=False, missile=MissileConfig(kill_radius_m=101.0)),
        AircombatConfig(load_limits=False, missile=MissileConfig(burn_s=9.0)),
        AircombatConfig(load_limits=False, fighter=FighterConfig(thrust_g=1.6)),
    ],
)
def test_other_physics_have_another_table(folder: Path, built: list[int], changed: AircombatConfig) -> None:
    assert number_of(OTHER) == 1
    assert number_of(changed) == 2
    assert number_of(OTHER) == 1


def test_another_version_of_the_code_has_another_table(
    folder: Path, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert number_of(OTHER) == 1
    monkeypatch.setattr(store, "VERSION", store.VERSION + 1)
    assert number_of(OTHER) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other"])
def test_a_damaged_file_is_built_again(folder: Path, built: list[int], damage: str) -> None:
    assert number_of(OTHER) == 1
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    elif damage == "other":
        content = bytearray(store.SHIPPED.read_bytes())
    path.write_bytes({"empty": b"", "text": b"no table"}.get(damage, bytes(content)))
    assert number_of(OTHER) == 2
    assert number_of(OTHER) == 2  # and kept


def test_where_nothing_can_be_written_the_table_serves_once_and_says_so(folder: Path, built: list[int]) -> None:
    folder.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="is not cached"):
        assert number_of(OTHER) == 1
    with pytest.warns(UserWarning, match="is not cached"):
        assert number_of(OTHER) == 2


def test_two_processes_may_write_the_same_table(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\nfrom pathlib import Path\n"
        "from fledge.tasks.aircombat.spacetime import store\n"
        "from fledge.tasks.aircombat.spacetime.build import SHAPE\n"
        "ranges = np.full((2, *SHAPE, 4), 2000.0, np.float32)\n"
        "for _ in range(5):\n"
        "    store.write_ranges(Path(sys.argv[1]), 'key', (ranges[0], ranges[1]))\n"
        "    assert store.read_ranges(Path(sys.argv[1]), 'key') is not None\n"
    )
    path = tmp_path / "reach.npz"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["reach.npz"]


def test_a_damaged_table_is_none_wherever_the_damage_is(tmp_path: Path) -> None:
    key, whole, path = store.key_of(physics_of(AircombatConfig())), store.SHIPPED.read_bytes(), tmp_path / "table.npz"
    good = store.read_ranges(store.SHIPPED, key)
    assert good is not None
    np.save(tmp_path / "other.npy", np.zeros(3))
    path.write_bytes((tmp_path / "other.npy").read_bytes())
    assert store.read_ranges(path, key) is None
    for at in [4, 8, *np.linspace(200, len(whole) - 30, 24, dtype=int)]:  # versions and methods of the zip; its content
        damaged = bytearray(whole)
        damaged[at : at + 20] = bytes(b ^ 0x5A for b in damaged[at : at + 20])
        path.write_bytes(damaged)
        found = store.read_ranges(path, key)
        assert found is None or all(map(np.array_equal, found, good)), at  # what no reader looks at may be anything
