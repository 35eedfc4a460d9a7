"""Moving pictures: drones move in them, all episodes of one map are drawn, and any task works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fledge.app.exporters import export_recording
from fledge.app.exporters.animation import COLOURS, Canvas, Shot, draw_frames
from fledge.app.recordings.episode_payload import stage_key
from fledge.core.errors import ConfigError
from fledge.storage import Recording, RecordingWriter
from fledge.tasks.registry import find_task
from fledge.tasks.view.stage import track_seconds
from tests.app.recorded import flights, record_duel, record_flights, record_generic


def frames_of(path: Path) -> list[np.ndarray]:
    image = Image.open(path)
    found = []
    for k in range(image.n_frames):
        image.seek(k)
        found.append(np.asarray(image.convert("RGB"), np.int16))
    return found


def test_all_episodes_of_the_most_used_map_fly_at_once(tmp_path: Path) -> None:
    source = record_flights(tmp_path / "flights.frec")
    done = export_recording(source, tmp_path / "flights.webp")
    with Recording(source) as recording:
        keys = [stage_key(recording.track(e.number)["scene"]) for e in recording]
    assert done["drawn"] == max(keys.count(key) for key in keys) < len(keys)
    images = frames_of(tmp_path / "flights.webp")
    assert len(images) > 20
    assert np.abs(images[0] - images[len(images) // 2]).max() > 60


def test_one_fight_is_chosen_by_its_number(tmp_path: Path) -> None:
    source = record_duel(tmp_path / "duel.frec")
    done = export_recording(source, tmp_path / "duel.gif", 0)
    assert done["drawn"] == 1
    assert len(frames_of(tmp_path / "duel.gif")) > 20


def test_a_task_that_is_not_installed_is_drawn_and_an_unfinished_episode_is_refused(tmp_path: Path) -> None:
    source = record_generic(tmp_path / "else.frec", episodes=1)
    done = export_recording(source, tmp_path / "else.webp", 0)
    assert done["drawn"] == 1
    empty = tmp_path / "empty.frec"
    with RecordingWriter(empty, "navigation", {"pos": np.zeros(3, np.float32)}, 1.0) as writer:
        writer.begin({}, {})
    with pytest.raises(ConfigError, match="nothing to draw"):
        export_recording(empty, tmp_path / "empty.webp")


def test_a_drone_is_drawn_at_its_recorded_place() -> None:
    view = find_task("navigation").view
    track = flights().highlights[0]
    shot = Shot(track_seconds(track), [a for a in view.objects(track) if a.kind == "drone"], None)
    canvas = Canvas(view.stage(track.scene), [shot], 1)
    colour = np.array([int(COLOURS["blue"][k : k + 2], 16) for k in (1, 3, 5)])
    for k in (1, len(shot.seconds) // 2):
        image = canvas.draw(float(shot.seconds[k])).astype(int)
        rows, columns = np.nonzero(np.abs(image - colour).sum(axis=-1) < 12)
        assert len(rows)
        x, y = canvas.axes.transData.transform(track.frames["pos"][k, :2])
        height = image.shape[0]
        assert np.hypot(columns - x, (height - rows) - y).min() < 6
    assert len(draw_frames(view.stage(track.scene), [shot])[0]) > 15
