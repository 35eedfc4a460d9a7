"""ACMI files open in a strict reader that shares nothing with the writer, and give positions back to a metre."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge.app.exporters.acmi import acmi_lines, export_acmi
from fledge.core.errors import InputError
from fledge.evaluation.episodes import evaluate
from fledge.evaluation.recordings import save_recording
from fledge.storage import Recording, RecordingWriter
from fledge.tasks.base import Task
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.pilots import GapPilot
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.objects import SceneObject, objects_in
from fledge.tasks.view.trajectory import Trajectory
from tests.reference.acmi import Acmi, AcmiError, earth_centred, metres_per_degree, parse

T = 60


def duel() -> dict[str, np.ndarray]:
    """Two fighters nose to nose, 30 km apart, who turn; missiles come and go, one slot is used twice."""
    t = np.arange(T, dtype=np.float64)
    heading = np.stack([0.02 * t, math.pi + 0.015 * t], axis=1)
    step = 300.0 * np.stack([np.cos(heading), np.sin(heading)], axis=-1)
    pos = np.cumsum(step, axis=0) + np.array([[-15000.0, 0.0], [15000.0, 0.0]])
    alive = np.ones((T, 2), bool)
    alive[50:, 1] = False
    missile_alive = np.zeros((T, 2, 6), bool)
    missile_alive[5:20, 0, 0] = missile_alive[30:45, 0, 0] = missile_alive[10:T, 1, 2] = True
    missile_pos = np.repeat(pos[:, :, None], 6, axis=2) + 500.0 * np.arange(6)[:, None]
    frames = {
        "pos": pos,
        "heading": heading,
        "speed": np.full((T, 2), 300.0),
        "alive": alive,
        "missile_pos": missile_pos,
        "missile_heading": np.repeat(heading[:, :, None], 6, axis=2),
        "missile_speed": np.full((T, 2, 6), 900.0),
        "missile_alive": missile_alive,
        "time_s": t * 1.0,
    }
    return {name: value if value.dtype == bool else value.astype(np.float32) for name, value in frames.items()}


class DuelView(TaskView):
    """The side that lost was destroyed when the episode ended."""

    def objects(self, track: Trajectory) -> list[SceneObject]:
        found = objects_in(track)
        found[0].destroyed = track.outcome == "loss"
        found[0].name, found[1].name = "Viper, 1", "a | b\nc \\ d"
        return found


def make_task() -> Task:
    return Task("duel", NavigationConfig, view=DuelView())


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path, frames = tmp_path_factory.mktemp("duel") / "a.frec", duel()
    with RecordingWriter(path, "duel", {k: v[0] for k, v in frames.items()}, 1.0) as writer:
        for outcome in ("win", "loss"):
            episode = writer.begin({}, {"episode": 12})
            writer.add_many(episode, frames)
            writer.end(episode, outcome)
    return Recording(path)


def metres(parsed: Acmi, sample: dict[str, float]) -> tuple[float, float]:
    """Where a sample is in our world, by its longitude and latitude alone."""
    lon0, lat0 = (float(parsed.properties[f"Reference{name}"]) for name in ("Longitude", "Latitude"))
    east, north = metres_per_degree(lon0, lat0)
    return sample["lon"] * east, sample["lat"] * north


@pytest.mark.parametrize("reference", [(0.0, 0.0), (24.5, 60.25), (-115.0, -36.5)])
def test_a_duel_round_trips_to_a_metre_around_any_reference(
    recording: Recording, tmp_path: Path, reference: tuple[float, float]
) -> None:
    done = export_acmi(recording, make_task(), tmp_path / "a.acmi", reference=reference)
    parsed, frames = parse((tmp_path / "a.acmi").read_bytes()), duel()
    assert (done["objects"], done["frames"], done["outcome"]) == (14, T, "win")
    for side in (0, 1):
        thing = parsed.things[side + 1]
        samples = thing.samples
        assert len(samples) == (T, 50)[side]
        for t, sample in enumerate(samples):
            x, y = frames["pos"][t, side]
            assert sample["t"] == pytest.approx(t)
            assert metres(parsed, sample) == pytest.approx((x, y), abs=1.0)
            assert (sample["u"], sample["v"], sample["alt"]) == pytest.approx((x, y, 5000.0), abs=0.01)
            turned = math.radians(90.0 - sample["yaw"])  # clockwise from north
            assert math.cos(turned - frames["heading"][t, side]) > 0.999999
            assert sample["yaw"] == sample["heading"]
        assert thing.properties["Type"] == "Air+FixedWing"
        assert thing.properties["Color"] == ("Blue", "Red")[side]
        assert thing.properties["Coalition"] == ("Allies", "Enemies")[side]


def test_distances_on_the_globe_are_those_of_our_world(recording: Recording, tmp_path: Path) -> None:
    export_acmi(recording, make_task(), tmp_path / "a.acmi")
    one, two = (parse((tmp_path / "a.acmi").read_bytes()).things[k].samples[0] for k in (1, 2))
    apart = math.dist(*(earth_centred(s["lon"], s["lat"], 0.0) for s in (one, two)))
    assert apart == pytest.approx(math.dist(*duel()["pos"][0]), rel=1e-5)


def test_missiles_come_and_go_each_flight_under_its_own_number(recording: Recording, tmp_path: Path) -> None:
    export_acmi(recording, make_task(), tmp_path / "a.acmi")
    parsed = parse((tmp_path / "a.acmi").read_bytes())
    missiles = [thing for thing in parsed.things.values() if thing.properties["Type"] == "Weapon+Missile"]
    stays = sorted((m.samples[0]["t"], m.gone_at, m.properties["Parent"], m.properties["Color"]) for m in missiles)
    assert stays == [(5.0, 20.0, "1", "Blue"), (10.0, 60.0, "2", "Red"), (30.0, 45.0, "1", "Blue")]
    timeouts = [(t, parts[0]) for t, kind, parts in parsed.events if kind == "Timeout"]
    assert timeouts == [(20.0, "SourceId:1"), (45.0, "SourceId:1")]


def test_deaths_are_told_when_they_happen_and_at_the_end_by_the_outcome(recording: Recording, tmp_path: Path) -> None:
    deaths = []
    for number in (0, 1):
        export_acmi(recording, make_task(), tmp_path / "a.acmi", episode=number)
        parsed = parse((tmp_path / "a.acmi").read_bytes())
        deaths.append([(t, parts[0]) for t, kind, parts in parsed.events if kind == "Destroyed"])
        assert all(thing.gone_at is not None for thing in parsed.things.values())
        assert [t for t, kind, _ in parsed.events if kind == "Bookmark"] == [60.0]
    assert deaths == [[(50.0, "2")], [(50.0, "2"), (60.0, "1")]]


def test_text_with_commas_bars_and_line_ends_stays_one_value(recording: Recording, tmp_path: Path) -> None:
    export_acmi(recording, make_task(), tmp_path / "a.acmi")
    parsed = parse((tmp_path / "a.acmi").read_bytes())
    assert parsed.things[1].properties["Name"] == "Viper, 1"
    assert parsed.things[2].properties["Name"] == "a / b\nc / d"
    assert parsed.properties["Title"] == "duel: episode 12, win"


def test_a_task_without_words_of_its_own_shows_what_has_positions() -> None:
    frames = duel()
    found = Task("any", NavigationConfig).view.objects(Trajectory(frames, {}, "win"))
    assert [thing.name for thing in found[:4]] == ["thing 1", "thing 2", "missile 1 1", "missile 1 2"]
    assert len(found) == 2 + 12
    assert [thing.parent for thing in found] == [None, None, *[0] * 6, *[1] * 6]
    (alone,) = objects_in(Trajectory({"pos": np.zeros((5, 3)), "speed": np.zeros(5)}, {}, "win"))
    assert (alone.heading, alone.name) == (None, "thing")
    assert objects_in(Trajectory({"state": np.zeros((5, 3))}, {}, "win")) == []
    lost = objects_in(Trajectory({"pos": np.array([[0.0, 1], [np.nan, 1], [2, 3]])}, {}, "win"))
    assert lost[0].present is not None
    assert lost[0].present.tolist() == [True, False, True]


def test_an_episode_without_frames_is_a_file_too() -> None:
    thing = SceneObject("a", np.zeros((0, 3)))
    parsed = parse("".join(acmi_lines([thing], np.zeros(0), "empty", 1.0)).encode())
    assert parsed.things == {}


def test_flights_of_drones_round_trip_with_goal_and_movers(tmp_path: Path) -> None:
    task, cfg = NavigationTask(), NavigationConfig(num_envs=32, num_maps=2, decimation=5, moving_obstacles=40)
    result = evaluate(GapPilot(), task, cfg, 32, highlights=6)
    save_recording(tmp_path / "a.frec", task, result.highlights, result.decision_s, {})
    recording, crashes = Recording(tmp_path / "a.frec"), 0
    for episode in recording:
        export_acmi(recording, task, tmp_path / "a.acmi", episode.number)
        parsed, frames = parse((tmp_path / "a.acmi").read_bytes()), episode.frames()
        drone, goal, *movers = parsed.things.values()
        assert [metres(parsed, s) for s in drone.samples] == [pytest.approx(p[:2], abs=0.05) for p in frames["pos"]]
        assert [s["alt"] for s in drone.samples] == pytest.approx(frames["pos"][:, 2].tolist(), abs=0.01)
        assert metres(parsed, goal.samples[0]) == pytest.approx(episode.scene["goal"][:2], abs=0.05)
        assert len(goal.samples) == 1
        assert sum(len(mover.samples) for mover in movers) == np.isfinite(frames["mover"]).all(axis=1).sum()
        for mover in movers:
            path = np.array([(s["u"], s["v"]) for s in mover.samples])
            assert np.linalg.norm(np.diff(path, axis=0), axis=1).max(initial=0.0) < 0.6
        destroyed = [parts[0] for _, kind, parts in parsed.events if kind == "Destroyed"]
        assert destroyed == (["1"] if episode.outcome and episode.outcome.startswith("collision") else [])
        crashes += len(destroyed)
    assert crashes


def test_what_has_no_positions_and_a_reference_off_the_earth_get_a_sentence(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "a.frec", "gym:CartPole-v1", {"observation": np.zeros(4)}, 0.02) as writer:
        episode = writer.begin()
        writer.add(episode, {"observation": np.zeros(4)})
        writer.end(episode, "terminated")
    with pytest.raises(InputError, match=r"holds no positions for an ACMI file, only observation"):
        export_acmi(Recording(tmp_path / "a.frec"), Task("any", NavigationConfig), tmp_path / "a.acmi")
    with pytest.raises(InputError, match="latitude from"):
        list(acmi_lines([], np.zeros(0), "", 1.0, (0.0, 90.0)))


HEAD = "FileType=text/acmi/tacview\nFileVersion=2.2\n"


@pytest.mark.parametrize(
    "body",
    [
        "#1\n#0.5\n",
        "#1\n1,Name=a,Type=Air\n",
        "#1\n1,T=0|0|0,Name=a,Type=Air+Balloon\n",
        "#1\n1,T=0|0,Name=a,Type=Air\n",
        "#1\n-1\n",
        "#1\n1,T=0|0|0,Name=a,Type=Air\n#2\n-1\n#3\n1,T=0|0|0\n",
        "#1\n0,Event=Destroyed|7|\n",
        "#1\n1,T=0|0|nan,Name=a,Type=Air\n",
        "#1\n01,T=0|0|0,Name=a,Type=Air\n",
        "#1\n1,T=0|0|0,Name=a,Type=Air,Color=Pink\n",
        "#1\n1,T=0|0|0,Name=a b\\c,Type=Air\n",
        "#1\n1,T=0|0|0,Name=a,Type=Air",
        "0,Titel=x\n",
        "\n",
    ],
)
def test_the_strict_reader_is_strict(body: str) -> None:
    with pytest.raises(AcmiError):
        parse((HEAD + body).encode())


def test_the_strict_reader_reads_the_example_of_the_description() -> None:
    body: Any = (
        "0,ReferenceTime=2011-06-02T05:00:00Z\n#47.13\n3000102,T=41.6251307|41.5910417|2000.14,Name=C172,Type=Air\n"
    )
    parsed = parse((HEAD + body).encode())
    assert parsed.things[0x3000102].samples == [{"t": 47.13, "lon": 41.6251307, "lat": 41.5910417, "alt": 2000.14}]
