"""MCAP: what is in the file, read by its own library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fledge.app.exporters import export_recording
from fledge.storage import Recording
from tests.app.recorded import record_flights, record_generic

reader = pytest.importorskip("mcap.reader", reason="needs the extra mcap")


def test_an_episode_is_there_frame_by_frame(tmp_path: Path) -> None:
    source = record_flights(tmp_path / "flights.frec")
    done = export_recording(source, tmp_path / "flight.mcap", 1, None)
    found: dict[str, list[tuple[int, dict]]] = {}
    with open(tmp_path / "flight.mcap", "rb") as stream:
        for schema, channel, message in reader.make_reader(stream).iter_messages():
            found.setdefault(channel.topic, []).append((message.log_time, json.loads(message.data)))
            assert json.loads(schema.data)["title"] == schema.name
    episode = Recording(source)[1]
    frames = episode.frames()
    assert done["messages"] == sum(map(len, found.values()))
    assert found["/episode"][0][1]["outcome"] == episode.outcome
    assert [at for at, _ in found["/tf"]] == [round(t * 1e9) for t in episode.times().tolist()]
    path = np.array([list(told["translation"].values()) for _, told in found["/tf"]])
    np.testing.assert_allclose(path, frames["pos"], rtol=1e-6)
    assert len(found["/scene"]) == len(path) + 1
    movers = found["/scene"][-1][1]["entities"][-1]
    assert len(movers["cubes"]) + len(movers["cylinders"]) == (frames["crowd_id"][-1] >= 0).sum()
    assert "speed" in found["/instruments"][3][1]


def test_a_world_without_heights_is_written_too(tmp_path: Path) -> None:
    done = export_recording(record_generic(tmp_path / "else.frec"), tmp_path / "else.mcap", None, None)
    assert done["messages"] == 2 + 3 * 60
