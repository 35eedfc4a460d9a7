"""`fledge world`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fledge
from fledge.app.exporters.json import episode_as_json
from fledge.app.recordings.episode_payload import pack_episode
from fledge.cli import main
from fledge.storage import Recording
from fledge.tasks.registry import find_task


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["world", *words])
    return result.exit_code, result.output + str(result.exception or "")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed room of 8 x 6 x 3 m in millimetres, without a floor, in a folder whose name has a space."""
    solid = np.ones((80, 60, 30), bool)
    solid[1:-1, 1:-1, :-1] = False
    path = tmp_path_factory.mktemp("a folder") / "my room.npy"
    np.save(path, (np.argwhere(solid) + 0.5) * 100.0)
    return path


def test_a_file_is_checked_drawn_and_stored(cloud: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "sub folder" / "room.fworld", tmp_path / "room.png"
    code, told = call(str(cloud), "--out", str(out), "--picture", str(picture))
    assert code == 0, told
    for words in (
        "my room: 8.0 x 6.0 x 3.1 m, 148,800 voxels of 0.1 m",
        "open sides  none",
        "taken as millimetres",
        "pass --scale 1 if",
        "A floor is added",
        "--floor none leaves it out",
        f"{out}: ",
    ):
        assert words in told
    assert picture.stat().st_size > 20_000
    assert fledge.load_world(out).solid.shape == (80, 60, 31)
    code, again = call(str(out), "--json")
    assert code == 0
    assert json.loads(again)["routes"] == 256


def test_options_reach_the_reader(cloud: Path) -> None:
    code, told = call(str(cloud), "--json", "--scale", "0.002", "--cell", "0.4", "--floor", "none", "--up", "y")
    assert code == 0, told
    found = json.loads(told)
    assert found["cell_m"] == 0.4
    np.testing.assert_allclose(found["size_m"], [16.0, 6.0, 12.0], atol=0.8)  # y is up, and a unit is 2 mm
    assert not any("floor is added" in note or "unit" in note for note in found["notes"])


def test_a_generated_world_depends_on_seed_and_index() -> None:
    figures = [json.loads(call("hall", "--json", *words)[1]) for words in ([], [], ["--index", "1"], ["--seed", "1"])]
    assert figures[0] == figures[1]
    assert len({tuple(each["size_m"]) for each in figures}) == 3


def test_what_cannot_be_read_is_one_sentence(cloud: Path, tmp_path: Path) -> None:
    (tmp_path / "x.ply").write_bytes(b"ply\n")
    for words, code, sentence in (
        (["roms"], 2, "neither a file nor a generator"),
        (["roms"], 2, "Did you mean rooms?"),
        (["no such.ply"], 2, "There is no no such.ply"),
        ([str(tmp_path)], 2, "is a folder"),
        ([str(tmp_path / "x.ply")], 1, "the header has no format"),
        (["hall", "--up", "z"], 2, "hall is a generator, so up does not apply"),
        ([str(cloud), "--scale", "0"], 2, "scale is 0"),
        ([str(cloud), "--cell", "0.001"], 2, "must be 0.01 to 10 m"),
        ([str(cloud), "--out", "x.ply"], 2, "must end in .fworld"),
        ([str(cloud), "--up", "x"], 2, "'x' is not one of"),
    ):
        found, told = call(*words)
        assert sentence in told
        assert found == code
    assert not Path("x.ply").exists()


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "trimesh", None)
    (tmp_path / "x.stl").write_bytes(b"solid")
    code, told = call(str(tmp_path / "x.stl"))
    assert code == 2
    assert "trimesh is not installed" in told
    assert "[worlds]" in told


def test_show_serves_a_recording_of_routes_in_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    def open_instead(folders: list[Path], page: Any, **options: Any) -> None:
        task = find_task("navigation")
        with Recording(folders[0]) as recording:
            shown.append(
                (episode_as_json(recording, task, 0), pack_episode(recording, task, 0), len(recording), options)
            )

    monkeypatch.setattr("fledge.cli.world.open_app", open_instead)
    code, told = call("rooms", "--show", "--no-browser", "--port", "0")
    assert code == 0, told
    episode, packed, count, options = shown[0]
    assert count == 12
    assert options["no_browser"]
    assert episode["outcome"] == "route"
    assert 20 < len(episode["arrays"]["stage/boxes"]) < 5000
    assert packed[:4] == b"EPIS"
