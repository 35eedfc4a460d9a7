"""Ranges on the command line: syntax, and checks before a study starts."""

from dataclasses import replace

import pytest

from fledge.core.errors import ConfigError
from fledge.tasks.registry import find_task
from fledge.tuning.ranges import Range, check_ranges, read_ranges, to_overrides

NAVIGATION = find_task("navigation")


def checked(*words: str, on_resume: bool = False) -> list[Range]:
    ranges, fixed = read_ranges(words)
    return check_ranges(NAVIGATION, None, ranges, fixed, on_resume)


@pytest.mark.parametrize(
    ("word", "low", "high", "step", "log"),
    [
        ("ppo.lr=1e-4..1e-2", 1e-4, 1e-2, 0, True),
        ("ppo.lr=lin:1e-4..1e-2", 1e-4, 1e-2, 0, False),
        ("ppo.gamma=0.97..0.999", 0.97, 0.999, 0, False),
        ("ppo.gamma=log:.9..0.99", 0.9, 0.99, 0, True),
        ("ppo.lr=0..1", 0, 1, 0, False),
        ("x=-1..1.5", -1, 1.5, 0, False),
        ("env.num_envs=64..512:64", 64, 512, 64, False),
    ],
)
def test_a_range_of_numbers_is_read(word: str, low: float, high: float, step: float, log: bool) -> None:
    (found,), fixed = read_ranges([word])
    assert (found.low, found.high, found.step, found.log, fixed) == (low, high, step, log, [])


def test_choices_are_read_in_both_forms_and_other_words_stay_settings() -> None:
    ranges, fixed = read_ranges(
        ["algo=ppo|sac", "ppo.epochs={1, 2,4}", "init_from=../runs/a..b", "env.opponent=a(x=1)"]
    )
    assert [each.choices for each in ranges] == [("ppo", "sac"), ("1", "2", "4")]
    assert fixed == ["init_from=../runs/a..b", "env.opponent=a(x=1)"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("ppo.lr=1e-2..1e-4", "is empty"),
        ("ppo.lr=log:0..1", "positive ends"),
        ("ppo.lr=1..2:3", "step must be"),
        ("algo=ppo|ppo", "different choices"),
        ("algo=ppo|", "different choices"),
        ("ppo.lr=1e-3|0.001", "different choices"),
    ],
)
def test_a_malformed_range_is_refused_with_a_sentence(word: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_ranges([word])


def test_a_setting_with_a_range_and_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.lr is given twice"):
        read_ranges(["ppo.lr=1e-4..1e-2", "ppo.lr=1e-3"])


def test_the_settings_decide_which_ranges_are_whole_and_where_the_preset_lies() -> None:
    lr, epochs, minibatch, gamma = checked(
        "ppo.lr=1e-4..1e-2", "ppo.epochs=1..6", "ppo.minibatch=64|4096", "ppo.gamma=.1..0.2"
    )
    assert (lr.whole, epochs.whole) == (False, True)
    assert (lr.start, epochs.start, minibatch.start, gamma.start) == (7e-4, 3, "4096", None)
    params = {"ppo.lr": 0.00123, "ppo.epochs": 2, "ppo.minibatch": "64", "ppo.gamma": 0.15}
    assert to_overrides([lr, epochs, minibatch, gamma], params) == [
        "ppo.lr=0.00123", "ppo.epochs=2", "ppo.minibatch=64", "ppo.gamma=0.15",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ppo.lrate=1e-4..1e-2"], "There is no setting ppo.lrate"),
        (["ppo.lr=1e-4..2"], r"ppo.lr is 2.0, but must be"),
        (["ppo.epochs=0.5..3"], "does not fit"),
        (["ppo.epochs=1..4:0.5"], "whole step"),
        (["algo=ppo|pppo"], "pppo"),
        (["reward=1..2"], "does not take numbers"),
    ],
)
def test_names_and_both_ends_are_checked_against_the_config(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        checked(*words)


def test_population_based_training_refuses_what_cannot_change_during_a_run() -> None:
    assert checked("ppo.lr=1e-4..1e-2", on_resume=True)
    with pytest.raises(ConfigError, match=r"env\.num_envs cannot change during a run"):
        checked("env.num_envs=64..128", on_resume=True)


def test_places_and_values_are_inverse_and_stay_inside() -> None:
    for each in checked("ppo.lr=1e-4..1e-2", "ppo.epochs=1..6", "ppo.gamma=0.9..0.99:0.01", "ppo.minibatch=64|128|256"):
        for place in (-1.0, 0.0, 0.3, 0.5, 1.0, 2.0):
            value = each.value(place)
            assert each.value(each.place(value)) == pytest.approx(value) if not each.choices else value
            assert each.choices or each.low <= value <= each.high
    assert checked("ppo.gamma=0.9..0.99:0.03")[0].grid == pytest.approx([0.9, 0.93, 0.96, 0.99])


@pytest.mark.parametrize(
    "word", ["ppo.lr=1e-4...1e-2", "ppo.lr=a..b", "ppo.lr=1..", "ppo.lr=0.1..0,2", "ppo.lr=nan..1"]
)
def test_what_looks_like_a_range_is_never_read_as_another_one(word: str) -> None:
    with pytest.raises(ConfigError, match="two numbers with two dots between them"):
        checked(word)


def test_a_range_tells_what_it_searches() -> None:
    (lr, steps, algo), _ = read_ranges(["ppo.lr=1e-4..1e-2", "env.num_envs=64..512:64", "algo=ppo|sac"])
    assert str(lr) == "ppo.lr = 0.0001 to 0.01, logarithmic"
    assert str(steps) == "env.num_envs = 64 to 512 in steps of 64"
    assert str(algo) == "algo = ppo | sac"


def test_mappings_are_choices_between_bars_and_one_mapping_is_a_setting() -> None:
    for word in (
        "env.options={gravity: 9.8, k: [1, 2]}|{gravity: 12}",
        "env.options={{gravity: 9.8, k: [1, 2]},{gravity: 12}}",
    ):
        ranges, _ = read_ranges([word])
        assert ranges[0].choices == ("{gravity: 9.8, k: [1, 2]}", "{gravity: 12}")
    words = ["env.options={gravity: 9.8, length: 0.7}", "env.other={}"]
    assert read_ranges(words) == ([], words)


@pytest.mark.parametrize("word", ["total_frames=1..3000000", "x=0..1e308:1e-300"])
def test_a_grid_of_too_many_values_is_refused_before_it_is_built(word: str) -> None:
    (found,), _ = read_ranges([word])
    with pytest.raises(ConfigError, match="more than 1,000,000 values"):
        _ = replace(found, whole=True).grid
