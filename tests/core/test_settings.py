"""Settings carry their limits and what changing them means; validation and resume read nothing else."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from fledge.core.config_help import field_help
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.core.settings import Rule, changed_settings, check_settings, flat_settings, rule_of, setting, walk


class Colour(enum.Enum):
    red = "r"
    green = "g"


@dataclass
class Inner:
    size: int = setting(4, at_least=1, at_most=9, resume="weights", shapes="picture")
    """Cells of the picture."""
    weight: float = setting(0.5, above=0, below=1)
    """How much it counts."""
    free: float = 2.0
    """Any finite number."""
    top: int = setting(5, resume="same")
    """At least size."""

    def validate(self) -> None:
        if self.top < self.size:
            raise ConfigError(f"inner.top is {self.top}, but must be at least inner.size ({self.size}).")


@dataclass
class Outer:
    name: str = setting("a", choices=("a", "b"), resume="same")
    """Its name."""
    steps: list[int] = setting([1, 2], at_least=0, items=(1, 3), resume="restart")
    """Steps taken."""
    colour: Colour = Colour.red
    """Which colour."""
    maybe: float | None = None
    """A number, or nothing."""
    head: int = setting(3, resume="weights")
    """Outputs."""
    on: bool = True
    """Whether at all."""
    inner: Inner = field(default_factory=Inner)


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "words", "good", "bad"),
    [
        (Rule(), "", [0, -1e30, True, "x", None, [1, "y"]], [math.nan, math.inf, -math.inf, [1.0, math.nan]]),
        (Rule(at_least=1), "at least 1", [1, 1.5, 10**12], [0, 0.999, -5, math.inf]),
        (Rule(above=0), "greater than 0", [1e-30, 5], [0, 0.0, -1e-30]),
        (Rule(at_most=9), "at most 9", [9, -100], [9.0001, 10]),
        (Rule(below=0.5), "less than 0.5", [0.4999, -3], [0.5, 1]),
        (Rule(at_least=0, at_most=1), "0 to 1", [0, 1, 0.5], [-0.001, 1.001]),
        (Rule(above=0, below=1), "greater than 0 and less than 1", [0.5], [0, 1]),
        (Rule(at_least=0, below=0.5), "at least 0 and less than 0.5", [0, 0.4], [0.5, -1]),
        (Rule(above=0, at_most=0.1), "at most 0.1 and greater than 0", [0.1], [0, 0.2]),
        (Rule(choices=("a", "b")), "a or b", ["a", "b"], ["c", ""]),
        (Rule(items=(1, None)), "at least 1 item", [[1], [1] * 50], [[]]),
        (Rule(items=(2, 2)), "2 items", [[1, 2]], [[1], [1, 2, 3], []]),
        (
            Rule(items=(1, 3), at_least=0),
            "1 to 3 items, each at least 0",
            [[0], [5, 6, 7]],
            [[], [0, -1], [1, 1, 1, 1]],
        ),
    ],
)
def test_a_rule_says_its_limits_and_allows_what_keeps_them(
    rule: Rule, words: str, good: list[Any], bad: list[Any]
) -> None:
    assert rule.limits() == words
    assert [value for value in good if not rule.allows(value)] == []
    assert [value for value in bad if rule.allows(value)] == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "c"}, "^x.name is 'c', but must be a or b.$"),
        ({"steps": []}, r"^x.steps is \[\], but must be 1 to 3 items, each at least 0.$"),
        ({"steps": [1, -1]}, r"^x.steps is \[1, -1\], but must be 1 to 3 items, each at least 0.$"),
        ({"maybe": math.inf}, "^x.maybe is inf, but must be finite.$"),
        ({"inner": Inner(size=0)}, "^x.inner.size is 0, but must be 1 to 9.$"),
        ({"inner": Inner(weight=1.0)}, "^x.inner.weight is 1.0, but must be greater than 0 and less than 1.$"),
        ({"inner": Inner(free=math.nan)}, "^x.inner.free is nan, but must be finite.$"),
        ({"inner": Inner(top=2)}, "inner.top is 2, but must be at least inner.size"),
    ],
)
def test_a_setting_beyond_its_limits_is_refused_by_its_whole_name(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_settings(Outer(**change), "x.")


def test_what_keeps_its_limits_passes() -> None:
    check_settings(Outer())
    check_settings(Outer("b", [0], Colour.green, -3.5, 1, False, Inner(9, 0.01, -7.0, 9)))


def test_limits_are_checked_before_combinations() -> None:
    with pytest.raises(ConfigError, match="size is 100, but must be 1 to 9"):
        check_settings(Outer(inner=Inner(size=100, top=1)))


def test_a_list_as_default_is_every_configs_own() -> None:
    one, two = Outer(), Outer()
    one.steps.append(7)
    assert two.steps == [1, 2]


def test_help_shows_type_default_meaning_and_limits() -> None:
    shown = {key: str(help) for key, help in field_help(Outer).items()}
    assert shown["name"] == "Its name. (text, a or b)"
    assert shown["steps"] == "Steps taken. (a list [a, b], 1 to 3 items, each at least 0)"
    assert shown["colour"] == "Which colour. (one of red or green)"
    assert shown["maybe"] == "A number, or nothing. (a number or null)"
    assert shown["inner.size"] == "Cells of the picture. (a whole number, 1 to 9)"
    assert shown["inner.free"] == "Any finite number. (a number)"
    assert field_help(Outer)["inner.weight"].default == "0.5"


# ---- walking ---------------------------------------------------------------------------------------------------------


def test_every_setting_is_met_once_with_its_dotted_key() -> None:
    met = [(key, rule_of(f).resume) for key, f, _ in walk(Outer(), "x.")]
    assert met == [
        ("x.name", "same"),
        ("x.steps", "restart"),
        ("x.colour", "changes"),
        ("x.maybe", "changes"),
        ("x.head", "weights"),
        ("x.on", "changes"),
        ("x.inner.size", "weights"),
        ("x.inner.weight", "changes"),
        ("x.inner.free", "changes"),
        ("x.inner.top", "same"),
    ]


def test_flat_settings_are_plain_values() -> None:
    flat = flat_settings(Outer(colour=Colour.green))
    assert flat["colour"] == "green"
    assert flat["inner.size"] == 4
    assert flat["steps"] == [1, 2]


# ---- what a change means ---------------------------------------------------------------------------------------------

NOTHING: dict[str, list[str]] = {"same": [], "changes": [], "restart": [], "weights": []}


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ([], {}),
        (["name=b", "inner.top=8"], {"same": ["name", "inner.top"]}),
        (["inner.free=3"], {"changes": ["inner.free"]}),  # what says nothing changes the run
        (["colour=green", "maybe=1", "on=false"], {"changes": ["colour", "maybe", "on"]}),
        (["steps=[1, 2, 3]"], {"restart": ["steps"]}),
        (["head=4"], {"weights": ["head"]}),
        (["inner.size=5"], {"weights": ["inner.size"]}),
        (["head=4", "steps=[1]", "name=b"], {"same": ["name"], "restart": ["steps"], "weights": ["head"]}),
        (["name=a", "steps=[1, 2]", "head=3"], {}),  # to what it was
    ],
)
def test_changes_are_told_by_what_they_mean(words: list[str], meaning: dict[str, list[str]]) -> None:
    before = flat_settings(Outer())
    assert changed_settings(before, build_config(Outer, [], words)) == NOTHING | meaning


@pytest.mark.parametrize(("observes", "kind"), [(None, "weights"), (["picture", "x"], "weights"), (["x"], "restart")])
def test_what_shapes_an_observation_concerns_only_policies_that_read_it(observes: list[str] | None, kind: str) -> None:
    before, after = flat_settings(Outer()), Outer(inner=Inner(size=5))
    assert changed_settings(before, after, observes=observes) == NOTHING | {kind: ["inner.size"]}


def test_what_shapes_the_action_concerns_every_policy() -> None:
    @dataclass
    class Hand:
        fingers: int = setting(5, resume="weights", shapes="action")
        grip: int = setting(1, resume="weights")

    changes = changed_settings(flat_settings(Hand()), Hand(fingers=4, grip=2), observes=["x"])
    assert changes == NOTHING | {"weights": ["fingers", "grip"]}


def test_a_setting_that_was_not_there_yet_counts_as_unchanged() -> None:
    before = flat_settings(Outer())
    del before["head"]
    assert changed_settings(before, Outer(head=9)) == NOTHING
