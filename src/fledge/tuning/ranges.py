"""Ranges of a sweep: parse them, check names and values against the task's config, and convert values to overrides.

ppo.lr=1e-4..1e-2        logarithmic, as HIGH is at least ten times LOW and both are positive; lin:LOW..HIGH forbids it
ppo.gamma=0.97..0.999    linear; log:LOW..HIGH makes it logarithmic
ppo.epochs=1..8          whole numbers, as the setting is one; 64..512:64 only every 64th
algo=ppo|sac             choices, also written {ppo,sac}; quote them in a shell
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.overrides import split_override
from fledge.core.settings import changed_settings, check_settings, flat_settings
from fledge.tasks.base import Task
from fledge.training.config import TrainConfig, make_config

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
SPAN = re.compile(rf"(?:(log|lin):)?({NUMBER})\.\.({NUMBER})(?::({NUMBER}))?")
LIKE_SPAN = re.compile(r"[^/\s]+\.\.[^/\s]*")  # but no path
MOST_POINTS = 1_000_000  # values of one range in a grid
DECADE = 10.0  # ratio of the ends from which a range is logarithmic by default


@dataclass(frozen=True)
class Range:
    """The values of one setting that a sweep tries."""

    name: str
    choices: tuple[str, ...] = ()
    """Values as text; empty for a range of numbers."""
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    """Distance between the values; 0: any value."""
    log: bool = False
    whole: bool = False
    start: float | str | None = None
    """The value of the preset if it lies in the range, for the first trial."""

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name} = {' | '.join(self.choices)}"
        kind = f" in steps of {self.step:g}" if self.step else ", logarithmic" if self.log else ""
        return f"{self.name} = {self.low:g} to {self.high:g}{kind}"

    def text(self, value: Any) -> str:
        """Return the override that gives the setting this value."""
        return f"{self.name}={value if self.choices else repr(int(value) if self.whole else float(value))}"

    def place(self, value: Any) -> float:
        """Return where a value lies between the ends: 0 to 1, on a logarithmic scale if the range is logarithmic."""
        if self.choices:
            return self.choices.index(value) / (len(self.choices) - 1)
        ends = [math.log(x) if self.log else x for x in (self.low, self.high, value)]
        return (ends[2] - ends[0]) / (ends[1] - ends[0])

    def value(self, place: float) -> Any:
        """Return the value at a place between the ends; `place` undone."""
        place = min(max(place, 0.0), 1.0)
        if self.choices:
            return self.choices[round(place * (len(self.choices) - 1))]
        if self.log:
            value = math.exp(math.log(self.low) + place * math.log(self.high / self.low))
        else:
            value = self.low + place * (self.high - self.low)
        if self.step:
            value = self.low + round((value - self.low) / self.step) * self.step
            value -= self.step if value > self.high * (1 + 1e-12) else 0.0
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    @property
    def grid(self) -> list[Any]:
        """Return all values of the range, for a grid search.

        Raises:
            ConfigError: The range has no steps.
        """
        if self.choices:
            return list(self.choices)
        if not self.step and not self.whole:
            raise ConfigError(
                f"{self.name}={self.low:g}..{self.high:g} has no steps for --sampler grid: write LOW..HIGH:STEP or a|b|c."
            )
        steps = (self.high - self.low) / (self.step or 1) + 1e-9
        if not steps < MOST_POINTS:
            raise ConfigError(
                f"{self.name}={self.low:g}..{self.high:g} has more than {MOST_POINTS:,} values, too many for --sampler grid: "
                "write LOW..HIGH:STEP with a larger step, or use --sampler random."
            )
        values = [self.low + k * (self.step or 1) for k in range(int(steps) + 1)]
        return [int(value) for value in values] if self.whole else values


def read_ranges(words: Sequence[str]) -> tuple[list[Range], list[str]]:
    """Split `key=value` words into ranges and settings that all trials share."""
    ranges, fixed = [], []
    for word in words:
        name, value = split_override(word)
        if "..." in value or (LIKE_SPAN.fullmatch(value) and not SPAN.fullmatch(value)):
            raise ConfigError(
                f"{word} is not a range: write two numbers with two dots between them, such as {name}=0.001..0.1."
            )
        if span := SPAN.fullmatch(value):
            ranges.append(_span(name, value, span))
        elif items := _choices(value):
            values = [float(item) if re.fullmatch(NUMBER, item) else item for item in items]
            if len(set(values)) < max(2, len(items)) or "" in items:
                raise ConfigError(f"{word} needs at least two different choices: write {name}=a|b|c.")
            ranges.append(Range(name, tuple(items)))
        else:
            fixed.append(word)
    names = [each.name for each in ranges]
    both = [word.partition("=")[0] for word in fixed]
    if twice := [name for name in names if names.count(name) > 1 or name in both]:
        raise ConfigError(f"{twice[0]} is given twice: give it one range or one value.")
    return ranges, fixed


def _choices(value: str) -> list[str]:
    """Return the choices a|b|c or {a,b,c}; [] if the text is another value, such as the mapping {a: 1, b: 2}."""
    if len(items := _split(value, "|")) > 1:
        return items
    if not (value.startswith("{") and value.endswith("}")):
        return []
    items = _split(value[1:-1], ",")
    return [] if all(": " in item and item[0] != "{" for item in items) or items == [""] else items


def _split(text: str, mark: str) -> list[str]:
    """Split a text at the marks that are outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _span(name: str, text: str, span: re.Match[str]) -> Range:
    low, high, step = (float(part) if part else 0.0 for part in span.group(2, 3, 4))
    if not low < high:
        raise ConfigError(f"{name}={text} is empty: the first number must be less than the second.")
    if span[4] and not 0 < step <= high - low:
        raise ConfigError(f"{name}={text}: the step must be greater than 0 and at most {high - low:g}.")
    if span[1] == "log" and (low <= 0 or step):
        raise ConfigError(f"{name}={text}: a logarithmic range has positive ends and no step. Write lin:LOW..HIGH.")
    log = span[1] == "log" or (span[1] is None and not step and low > 0 and high / low >= DECADE)
    return Range(name, (), low, high, step, log)


def check_ranges(
    task: Task, preset: str | None, ranges: Sequence[Range], fixed: Sequence[str], on_resume: bool = False
) -> list[Range]:
    """Return the ranges, completed with the kind of number and the preset's value, or raise ConfigError.

    Every choice and both ends of every range must be values that the task's config accepts.

    Args:
        on_resume: Whether the values change during a run (population-based training), which not every setting can.
    """
    base = make_config(task, preset, fixed)
    check_settings(base)
    return [_check(task, preset, each, fixed, base, on_resume) for each in ranges]


def _check(
    task: Task, preset: str | None, given: Range, fixed: Sequence[str], base: TrainConfig, on_resume: bool
) -> Range:
    values = [*given.choices] or [f"{given.low:.17g}", f"{given.high:.17g}"]
    found = []
    for value in values:
        cfg = make_config(task, preset, [*fixed, f"{given.name}={value}"])
        check_settings(cfg)
        found.append(flat_settings(cfg))
    keys = [key for key in found[0] if any(each.get(key) != found[0][key] for each in found[1:])]
    if not keys:
        raise ConfigError(f"{given.name} has no effect on task {task.name}: leave it out.")
    if bad := on_resume and [key for kind in ("weights", "restart") for key in changed_settings(found[0], cfg)[kind]]:
        raise ConfigError(f"{bad[0]} cannot change during a run, which --mode pbt would do: use --mode search.")
    before = flat_settings(base)
    if given.choices:
        start = next((value for value, each in zip(given.choices, found, strict=True) if each == before), None)
        return replace(given, start=start)
    now, whole = before.get(keys[0]), type(found[0][keys[0]]) is int
    if type(found[0][keys[0]]) not in (int, float):
        raise ConfigError(f"{given.name} does not take numbers: give choices instead, {given.name}=a|b|c.")
    if whole and given.step % 1:
        raise ConfigError(f"{given.name} takes whole numbers: give a whole step instead of {given.step:g}.")
    inside = len(keys) == 1 and isinstance(now, int | float) and given.low <= now <= given.high
    inside &= not given.step or not inside or abs((now - given.low) / given.step % 1.0) < 1e-9  # type: ignore[operator]
    return replace(given, whole=whole, start=now if inside else None)


def to_overrides(ranges: Sequence[Range], params: Mapping[str, Any]) -> list[str]:
    """Return the overrides that give a trial its parameters."""
    return [each.text(params[each.name]) for each in ranges if each.name in params]
