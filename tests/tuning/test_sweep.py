"""The definition of a sweep: checked before it starts, joined by its folder, and never mixed with another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fledge.core.errors import ConfigError
from fledge.core.settings import flat_settings
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.tuning.confirmation import BEST, Confirmation, mean_interval, write_best
from fledge.tuning.population import Population, moved
from fledge.tuning.sweep import FILE, grown, open_sweep, without_password
from tests.tuning.tiny import RANGES, SMALL, Command, make_sweep, use_program

NAVIGATION = find_task("navigation")


def test_a_wrong_name_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no setting"):
        open_sweep(tmp_path / "s", NAVIGATION, ["ppo.lrx=1e-4..1e-2"], {})
    with pytest.raises(ConfigError, match="at least one range"):
        open_sweep(tmp_path / "s", NAVIGATION, ["ppo.lr=1e-4"], {})
    with pytest.raises(ConfigError, match="SQLite"):
        open_sweep(tmp_path / "s", NAVIGATION, RANGES, {"storage": "sqlite:///a.db"})
    assert not (tmp_path / "s").exists()


def test_a_sweep_is_joined_by_its_folder_or_by_the_same_command(tmp_path: Path) -> None:
    first = make_sweep(tmp_path)
    for task, words, options in ((None, [], {}), (NAVIGATION, [*RANGES, *SMALL], {"trials": 6, "heartbeat_s": 0.1})):
        joined = open_sweep(tmp_path, task, words, options)
        assert joined.as_dict() == first.as_dict()


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        (["ppo.lr=1e-4..1e-3"], {}, r"ppo.lr=1e-4..1e-3 does not belong"),
        ([], {"seed": 4}, "seed=4 does not belong"),
        ([], {"trials": 2}, "it can only grow"),
        ([], {"storage": "postgresql://host/db"}, "storage=postgresql"),
    ],
)
def test_another_sweep_in_the_same_folder_is_refused(
    tmp_path: Path, words: list[str], options: dict, told: str
) -> None:  # type: ignore[type-arg]
    make_sweep(tmp_path)
    with pytest.raises(ConfigError, match=told):
        open_sweep(tmp_path, None, words, options)


def test_more_trials_extend_the_sweep_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch)
    mine = Command(make_sweep(tmp_path, trials=2, pruner="none"))
    mine.run()
    open_sweep(tmp_path, None, [], {"trials": 5})
    assert grown(mine.sweep) == 5
    mine.run()
    assert [trial.state.name for trial in mine.search.trials()] == ["COMPLETE"] * 5


def test_a_damaged_definition_is_one_sentence(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    text = (tmp_path / FILE).read_text()
    for damaged in ("", text[: len(text) // 2], "[]", json.dumps({"task": "navigation"})):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(ConfigError, match="cannot be read as a sweep"):
            open_sweep(tmp_path, None, [], {})


@pytest.mark.parametrize(
    "damage",
    [{"trials": "many"}, {"seeds": 2.5}, {"seeds": True}, {"words": "ppo.lr=1..2"}, {"words": [1]}, {"mode": []},
     {"preset": 3}, {"task": 3}, {"storage": None}, {"heartbeat_s": float("nan")}, {"folder": "elsewhere"}],
)  # fmt: skip
def test_a_definition_with_a_value_of_another_type_is_one_sentence(tmp_path: Path, damage: dict[str, object]) -> None:
    sweep = make_sweep(tmp_path)
    (tmp_path / FILE).write_text(json.dumps(json.loads((tmp_path / FILE).read_text()) | damage))
    with pytest.raises(ConfigError, match="cannot be read as a sweep"):
        open_sweep(tmp_path, None, [], {"trials": 7})
    assert grown(sweep) == 6


def test_results_of_a_confirmation_that_are_no_numbers_or_of_other_parameters_count_as_missing(tmp_path: Path) -> None:
    facts = {"ppo.lr": 0.001}
    phase = Confirmation(make_sweep(tmp_path, seeds=3), {"0004": facts})
    (tmp_path / "confirm").mkdir()
    for text in (
        '{"value": "x"}', '{"value": NaN, "test": 1e999}', '{"value": 0.5, "test": 1e999}', '{"value": 1, "minutes": "x"}',
        '{"value": null}', '{"error": 3}', '{"value": 0.5, "facts": {"ppo.lr": 0.002}}', '{"value": 0.5, "facts": []}',
    ):  # fmt: skip
        if "facts" not in text:
            text = json.dumps(json.loads(text) | {"facts": facts})
        (tmp_path / "confirm" / "0004-1.json").write_text(text)
        assert (phase.table()[0]["values"], next(phase.open_jobs())) == ([], "confirm/0004-1")
    (tmp_path / "confirm" / "0004-1.json").write_text(json.dumps({"value": 0.5, "test": 0.4, "facts": facts}))
    assert (phase.table()[0]["values"], len(list(phase.open_jobs()))) == ([0.5], 2)


def test_passwords_are_not_written(tmp_path: Path) -> None:
    assert without_password("postgresql://user:secret@host:5432/db") == "postgresql://user@host:5432/db"
    url = "postgresql://user:secret@host/db"
    make_sweep(tmp_path, storage=url)
    assert "secret" not in (tmp_path / FILE).read_text()
    assert open_sweep(tmp_path, None, [], {"storage": url}).storage == url


def test_a_grid_has_all_points_and_no_more_trials(tmp_path: Path) -> None:
    words = ["ppo.epochs=1..3", "ppo.minibatch=256|512", *SMALL]
    words.remove("ppo.minibatch=512")
    sweep = open_sweep(tmp_path, NAVIGATION, words, {"sampler": "grid", "trials": 100})
    search = Command(sweep).search
    points = {tuple(search.draw(f"trial/{k:04d}").values()) for k in range(sweep.trials)}
    assert points == {(epochs, size) for epochs in (1, 2, 3) for size in ("256", "512")}


def test_the_best_preset_gives_exactly_the_settings_of_the_trial(tmp_path: Path) -> None:
    words = ["ppo.lr=1e-4..1e-2", "hardware=small|medium", "env=crossing", "total_frames=5000"]
    sweep = open_sweep(tmp_path, NAVIGATION, words, {})
    write_best(sweep, {"ppo.lr": 0.00123, "hardware": "medium"}, "Trial 1.")
    read = make_config(NAVIGATION, str(tmp_path / BEST), [])
    direct = make_config(NAVIGATION, None, ["env=crossing", "total_frames=5000", "ppo.lr=0.00123", "hardware=medium"])
    assert flat_settings(read) == flat_settings(direct)


def test_intervals_are_those_of_students_t() -> None:
    assert mean_interval([]) is None
    assert mean_interval([0.5]) == [0.5, None, None]
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx([2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5])


def population(folder: Path, workers: int) -> list[dict[str, object]]:
    """Train a population with the small program, and return the facts of all its jobs."""
    sweep = make_sweep(folder, mode="pbt", population=4, generations=3)
    commands = [Command(sweep) for _ in range(workers)]
    members = Population(sweep)
    for command in commands:
        command.search = members  # type: ignore[assignment]
    [thread.join() for thread in [command.thread() for command in commands]]
    assert sum(len(command.told) for command in commands) == 12
    return [members.result(number)["facts"] for number in range(12)]  # type: ignore[index]


def test_a_population_depends_on_the_seed_and_not_on_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_program(monkeypatch)
    found = population(tmp_path / "a", 1)
    assert found == population(tmp_path / "b", 3)
    for generation in (1, 2):
        facts = found[4 * generation : 4 * generation + 4]
        parents = [fact["parent"] for fact in facts]
        before = Population(make_sweep(tmp_path / "a", mode="pbt", population=4, generations=3))
        values = [before.result(4 * (generation - 1) + member)["value"] for member in range(4)]  # type: ignore[index]
        worst, best = values.index(min(values)), values.index(max(values))
        own = [4 * (generation - 1) + member for member in range(4)]
        assert parents == [own[best] if member == worst else own[member] for member in range(4)]


def test_a_moved_parameter_stays_in_its_range_and_near(tmp_path: Path) -> None:
    import random

    lr, epochs = make_sweep(tmp_path).ranges
    rng = random.Random(0)
    for _ in range(100):
        assert abs(lr.place(moved(lr, 1e-3, rng)) - 0.5) <= 0.1 + 1e-9
        assert moved(epochs, 1, rng) in (1, 2)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds other files, such as x\.txt"):
        open_sweep(tmp_path, NAVIGATION, RANGES, {})
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]
