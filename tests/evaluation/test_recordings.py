"""An evaluation leaves a recording of its most interesting episodes, which can be looked into and converted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fledge.app.exporters import export_recording
from fledge.cli import main
from fledge.core.errors import ConfigError, FledgeError, FormatError
from fledge.evaluation import recorder
from fledge.evaluation.episodes import PolicyResult
from fledge.evaluation.episodes import evaluate as evaluate_in
from fledge.evaluation.recorder import Highlights
from fledge.evaluation.recordings import describe_recording, labelled_paths, render_recording, save_recording
from fledge.storage import Recording, RecordingWriter
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.pilots import GapPilot
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.view.trajectory import Trajectory
from tests.reference.acmi import parse

TASK = NavigationTask()
CFG = NavigationConfig(num_envs=24, num_maps=2, decimation=5, moving_obstacles=20, max_episode_steps=800)


def evaluate(episodes: int = 40, **options: Any) -> PolicyResult:
    return evaluate_in(GapPilot(), TASK, CFG, episodes, 1, **options)


def track(outcome: str, length: int) -> Trajectory:
    return Trajectory({"pos": np.zeros((length, 3), np.float32)}, {}, outcome, {"return": 0.0, "episode": length})


def told(highlights: Highlights) -> list[tuple[str, int]]:
    return [(t.outcome, len(t.frames["pos"])) for t in highlights.chosen()]


def test_highlights_take_turns_failures_first_the_rarest_first_and_of_each_the_longest() -> None:
    kept = Highlights(7, "success")
    for length in range(1, 101):
        kept.offer(track("success", length), length)
    for length in range(1, 31):
        kept.offer(track("crash", length), length)
    kept.offer(track("timeout", 500), 1000)
    assert told(kept) == [
        ("timeout", 500), ("crash", 30), ("success", 100), ("crash", 29), ("success", 99), ("crash", 28), ("success", 98),
    ]  # fmt: skip


def test_highlights_do_not_depend_on_the_order_in_which_episodes_end_and_hold_few() -> None:
    rng = np.random.default_rng(0)
    offers = [(["a", "b", "success"][k % 3], int(rng.integers(1, 20)), k) for k in range(300)]
    chosen = []
    for order in (offers, offers[::-1]):
        kept = Highlights(10, "success")
        for outcome, length, number in order:
            kept.offer(dataclasses.replace(track(outcome, length), facts={"episode": number}), number)
        assert sum(len(heap) for heap in kept._longest.values()) <= 30
        chosen.append([t.facts["episode"] for t in kept.chosen()])
    assert chosen[0] == chosen[1]


def test_recording_changes_no_figure_and_highlights_are_the_episodes_that_were_flown() -> None:
    plain, kept = evaluate(), evaluate(highlights=9, record=3)
    assert plain.counts == kept.counts
    assert plain.returns.tolist() == kept.returns.tolist()
    assert len(kept.highlights) == 9
    assert len(kept.trajectories) == 3
    assert {t.outcome for t in kept.highlights} == {name for name, count in kept.counts.items() if count}
    for found in kept.highlights:
        number = found.facts["episode"]
        assert kept.names[kept.outcomes[number]] == found.outcome
        assert kept.returns[number] == pytest.approx(found.facts["return"])
        assert len(found.frames["pos"]) * kept.decision_s == pytest.approx(kept.lengths_s[number])
        assert found.frames["pos"][0] == pytest.approx(found.scene["start"])
    assert any(t.facts["episode"] >= CFG.num_envs for t in kept.highlights)  # of the second wave too


def test_memory_while_flying_is_bounded_and_pictures_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_OPEN_BYTES", 30_000)
    most = []
    own = recorder.Recorder.before_step

    def before_step(self: Any, obs: Any) -> None:
        own(self, obs)
        most.append((self.open_bytes, len(self.open)))

    monkeypatch.setattr(recorder.Recorder, "before_step", before_step)
    result = evaluate(24, highlights=24, record=2)
    assert len(result.trajectories) == 2
    assert 2 <= len(result.highlights) < 24
    assert all(size <= 30_000 or count <= 2 for size, count in most)


def test_a_recording_of_an_evaluation_draws_the_same_picture_as_its_tracks(tmp_path: Path) -> None:
    result = evaluate(24, record=24, highlights=24)
    save_recording(tmp_path / "a.frec", TASK, result.highlights, result.decision_s, {"seed": 1})
    recording = Recording(tmp_path / "a.frec")
    back = {t["facts"]["episode"]: Trajectory(**t) for t in map(recording.track, range(24))}
    for found in result.trajectories:
        again = back[found.facts["episode"]]
        assert again.outcome == found.outcome
        assert all(np.array_equal(again.frames[k], v, equal_nan=True) for k, v in found.frames.items())
        assert all(np.array_equal(again.scene[k], v) for k, v in found.scene.items())
    ordered = [back[t.facts["episode"]] for t in result.trajectories]
    pictures = [TASK.view.draw(tracks, "t") for tracks in (result.trajectories, ordered)]
    for name, figure in zip("ab", pictures, strict=True):
        figure.savefig(tmp_path / f"{name}.png", metadata={"Software": None})
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_task_that_shows_nothing_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be recorded, as it has no frames"):
        save_recording(tmp_path / "a.frec", TASK, [Trajectory({}, {}, "success")], 1.0, {})


# ---- the command line --------------------------------------------------------------------------------------------------


def fledge(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def flown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("flown") / "deep" / "flights.frec"
    words = ["--episodes", 32, "--record", path, "--record-episodes", 5, "--json", "env.num_envs=32", "env.num_maps=1"]
    done = fledge("eval", "gap", *words)
    assert done.exit_code == 0, done.output
    return path, json.loads(done.stdout)


def test_eval_leaves_a_recording_and_inspect_tells_what_is_in_it(flown: tuple[Path, dict[str, Any]]) -> None:
    path, row = flown
    assert (row["recording"], row["recorded"], row["recording_bytes"]) == (str(path), 5, path.stat().st_size)
    done = fledge("inspect", path, "--json")
    found = json.loads(done.stdout)
    assert (found["task"], found["episodes"], found["closed"], found["damage"]) == ("navigation", 5, True, None)
    assert sum(found["outcomes"].values()) == 5
    assert found["facts"]["policy"] == "gap"
    assert found["facts"]["settings"]["num_envs"] == 32
    assert found["seconds"] == pytest.approx(sum(e["seconds"] for e in found["list"]))
    text = fledge("inspect", path).stdout
    for part in ("recording of navigation", "5 episodes", "outcomes: ", "policy gap", "pos float32 [3]"):
        assert part in text


def test_convert_writes_acmi_and_pictures(flown: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = flown
    done = fledge("convert", path, tmp_path / "a.acmi", "--episode", 2)
    assert done.exit_code == 0
    assert "episode 2 of 5" in done.stdout
    parsed, episode = parse((tmp_path / "a.acmi").read_bytes()), Recording(path)[2]
    assert len(parsed.things[1].samples) == episode.length
    assert f"episode {episode.facts['episode']}, {episode.outcome}" in parsed.properties["Title"]
    figures = json.loads(fledge("convert", path, tmp_path / "a.png", "--json").stdout)
    assert (figures["drawn"], figures["bytes"]) == (5, (tmp_path / "a.png").stat().st_size)


def test_several_policies_leave_several_recordings(tmp_path: Path) -> None:
    words = ["--episodes", 4, "--record", tmp_path / "a.frec", "env.num_envs=4", "env.num_maps=1"]
    assert fledge("eval", "gap", "straight", *words).exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a_gap.frec", "a_straight.frec"]
    assert [Recording(tmp_path / f"a_{name}.frec").facts["policy"] for name in ("gap", "straight")] == [
        "gap",
        "straight",
    ]


def test_misuse_of_the_command_line_gets_a_sentence(flown: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = flown
    (tmp_path / "newer.frec").write_bytes(b"fledge-recording 2\n" + path.read_bytes()[19:])
    (tmp_path / "other.pt").write_bytes(b"nothing")
    for words, sentence in (
        (("eval", "gap", "--record", "a.png"), "must end in .frec"),
        (("eval", "gap", "--record", "a.frec", "--checkpoints"), "--checkpoints writes no recording"),
        (("eval", "gap", "--record", "a.frec", "--record-episodes", "0"), "--record-episodes"),
        (("inspect", tmp_path / "newer.frec"), "of version 2, but this Fledge reads version 1"),
        (("convert", tmp_path / "newer.frec", "a.acmi"), "of version 2, but this Fledge reads version 1"),
        (("convert", path, tmp_path / "a.pt"), "must end in one of .acmi"),
        (("convert", path, tmp_path / "a.acmi", "--episode", 5), "has no episode 5; it has 5"),
        (("convert", tmp_path / "other.pt", tmp_path / "a.fledge", "--episode", 1), "is not a recording"),
    ):
        done = fledge(*words)
        assert done.exit_code != 0
        told = done.stderr or str(done.exception)
        assert sentence in told


def make(path: Path, task: str, outcome: str = "win", ended: bool = True) -> Path:
    writer = RecordingWriter(path, task, {"pos": np.zeros(3, np.float32)}, 0.1, facts={"policy": "\x1b[2J evil\n"})
    episode = writer.begin()
    writer.add(episode, {"pos": np.ones(3, np.float32)})
    if ended:
        writer.end(episode, outcome)
    writer.close()
    return path


def test_a_strangers_recording_is_data(tmp_path: Path) -> None:
    path = make(tmp_path / "a.frec", "navigation", "\x1b]0;evil\x07")
    done = CliRunner().invoke(main, ["inspect", str(path)])
    assert "evil" in done.output
    assert all(line.isprintable() for line in done.output.splitlines())
    with pytest.raises(FormatError, match="its frames do not fit"):
        export_recording(path, tmp_path / "a.png", None, None)
    with pytest.raises(FledgeError, match="is code and is not run unless you name it"):
        export_recording(make(tmp_path / "b.frec", "os:system"), tmp_path / "a.acmi", None, None)
    with pytest.raises(FledgeError, match="no task"):
        export_recording(make(tmp_path / "c.frec", "nowhere"), tmp_path / "a.acmi", None, None)


def test_a_recording_that_was_cut_is_inspected_and_converted(tmp_path: Path) -> None:
    path = make(tmp_path / "a.frec", "gym:CartPole-v1", ended=False)
    path.write_bytes(path.read_bytes()[:-20])
    assert any("plays up to there" in line for line in render_recording(describe_recording(path)))
    assert describe_recording(path)["outcomes"] == {"running": 1}
    assert export_recording(path, tmp_path / "a.acmi", None, None)["outcome"] == "running"
    with pytest.raises(ConfigError, match="has ended"):
        export_recording(path, tmp_path / "a.png", None, None)
    with RecordingWriter(tmp_path / "b.frec", "toy", {"x": 1.0}, 1.0):
        pass
    with pytest.raises(ConfigError, match="holds no episodes"):
        export_recording(tmp_path / "b.frec", tmp_path / "a.acmi", None, None)


@pytest.mark.parametrize(
    ("source", "target"), [("no.frec", "out.acmi"), ("no", "out.acmi"), ("no.fledge", "out.png"), ("no.frec", "out.pt")]
)
def test_a_missing_recording_is_what_is_missing(source: str, target: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["convert", str(tmp_path / source), str(tmp_path / target)])
    assert done.exit_code == 2
    assert f"There is no recording {tmp_path / source}" in done.output


@pytest.mark.parametrize("content", [b"", b"something else"])
@pytest.mark.parametrize("words", [["convert", "FILE", "out.acmi"], ["inspect", "FILE"]])
def test_a_file_that_is_no_recording_is_called_so(content: bytes, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    path.write_bytes(content)
    done = CliRunner().invoke(main, [str(path) if word == "FILE" else word for word in words])
    assert done.exit_code == 1
    assert f"{path} is not a recording" in done.output


def test_a_strangers_words_neither_steer_the_terminal_nor_break_json_or_acmi(tmp_path: Path) -> None:
    frame = {"pos": np.zeros((2, 2), np.float32), "alive": np.ones(2, bool)}
    path, acmi, wicked = tmp_path / "evil.frec", tmp_path / "evil.acmi", "won\n-1,T=|\x1b[2J\u2028\x85"
    with RecordingWriter(path, "aircombat", frame, 1.0, facts={"score": float("nan"), wicked: [wicked]}) as writer:
        episode = writer.begin({"scenario": wicked}, {"episode": wicked})
        writer.add(episode, frame)
        writer.end(episode, wicked, float("inf"))
    for words in (["inspect", str(path)], ["convert", str(path), str(acmi)], ["inspect", str(path), "--json"]):
        done = CliRunner().invoke(main, words, color=True)  # colour: a terminal, where nothing is taken out
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
    found = json.loads(done.output, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["list"][0]["return"] is None
    parse(acmi.read_bytes())
    assert "\x1b" not in acmi.read_text(encoding="utf-8")


def test_files_of_several_policies_have_their_names() -> None:
    names = [path.name for path in labelled_paths(Path("a/f.png"), ["gap", "nav.fledge", "gap", "x/y(z=1)"])]
    assert names == ["f_gap.png", "f_nav.png", "f_gap_2.png", "f_x-y-z=1-.png"]
    assert labelled_paths(Path("a/f.png"), ["gap"]) == [Path("a/f.png")]
