"""Settings: dataclass fields with limits, help text and the effect of changing them on a resumed run.

    lr: float = setting(7e-4, above=0, below=1)
    num_envs: int = setting(1024, at_least=1, resume="restart")

The string under a field is its help text. Validation, `--help-config`, resume and evaluation all read these declarations.

`resume` is the effect of a changed setting on a resumed run:

    resume="same"      results do not change: the run continues bit for bit
    resume="changes"   the run continues, with other results (the default)
    resume="restart"   the saved env state does not fit: episodes begin again, and the replay buffer is empty
    resume="weights"   the saved weights do not fit: the change is refused on resume and in evaluation
                       (with shapes="lidar": only if the policy reads the observation lidar, else as "restart")
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from fledge.core.code import absolute, is_gone
from fledge.core.errors import ConfigError
from fledge.core.yaml_text import parse_yaml

Resume = Literal["same", "changes", "restart", "weights"]
KEY = "fledge"  # of our entry in a field's metadata


@dataclasses.dataclass(frozen=True)
class Rule:
    """Limits of a setting (of each item if it is a list), and the effect of changing it on a resumed run."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    items: tuple[int, int | None] | None = None  # minimum and maximum length of a list
    resume: Resume = "changes"
    shapes: str = ""  # the observation whose shape it sets, or "action"
    absent: str = ""  # value in a run that was saved before the setting existed, as a file spells it; "": the default
    code: bool = False  # may be a reference to code, module:object, which runs only if the user names it

    def limits(self) -> str:
        """Return the limits as text; "" if there are none."""
        bounds = {"at least": self.at_least, "at most": self.at_most}
        bounds |= {"greater than": self.above, "less than": self.below}
        shown = {k: str(v) if isinstance(v, int) else f"{v:g}" for k, v in bounds.items() if v is not None}
        parts = [" or ".join(self.choices)] if self.choices else []
        if "at least" in shown and "at most" in shown:
            parts.append(f"{shown.pop('at least')} to {shown.pop('at most')}")
        text = " and ".join([*parts, *(f"{name} {limit}" for name, limit in shown.items())])
        if self.items is not None:
            low, high = self.items
            count = f"{low} to {high}" if high not in (None, low) else f"{low}" if high else f"at least {low}"
            text = f"{count} item{'s' if count not in ('1', 'at least 1') else ''}" + (f", each {text}" if text else "")
        return text

    def allows(self, value: Any) -> bool:
        if isinstance(value, list):
            low, high = self.items or (0, None)
            fits = len(value) >= low and (high is None or len(value) <= high)
            return fits and all(self.allows(item) for item in value)
        if isinstance(value, str):
            return not self.choices or value in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def setting(
    default: Any = dataclasses.MISSING, *, default_factory: Callable[[], Any] | None = None, **rule: Any
) -> Any:
    """Return a dataclass field with this default and a `Rule` of the other arguments; each config copies a default list."""
    metadata = {KEY: Rule(**rule)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def auto_keys(kind: type) -> tuple[str, ...]:
    """Return the settings that may be `auto`: the choices of a config's list setting `auto`, which holds those that are."""
    rules = [rule_of(field) for field in dataclasses.fields(kind) if field.name == "auto"]
    return rules[0].choices if rules else ()


def rule_of(field: dataclasses.Field[Any]) -> Rule:
    return field.metadata.get(KEY, Rule())


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yield dotted key, field and value of every setting of a config and of its nested configs."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field, value


def fill_absent(content: dict[str, Any], config: Any) -> None:
    """Add to the settings of a saved run those that did not exist yet, with the values that the run was made with.

    `content` has the saved values, nested as in the config; only settings with a `Rule.absent` are added.
    """
    for key, field, _ in walk(config):
        *groups, name = key.split(".")
        if value := rule_of(field).absent:
            place: Any = content
            for group in groups:
                place = place.get(group) if isinstance(place, dict) else None
            if isinstance(place, dict):
                place.setdefault(name, value)


def check_settings(config: Any, prefix: str = "") -> None:
    """Raise ConfigError unless every setting is within its limits; then call `validate` of the config and nested configs.

    Numbers must be finite even without limits. `validate` checks combinations of fields.
    """
    for key, field, value in walk(config, prefix):
        rule = rule_of(field)
        if not rule.allows(value):
            limits = rule.limits()
            items = value if isinstance(value, list) else [value]
            if any(isinstance(item, float) and not math.isfinite(item) for item in items):
                limits = f"finite and {limits}" if limits else "finite"
            shown = repr(value) if isinstance(value, str) else value
            raise ConfigError(f"{key} is {shown}, but must be {limits}.")
    _check_combinations(config)


def refuse_code(config: Any, overrides: Sequence[str] = (), prefix: str = "") -> None:
    """Raise ConfigError if a setting names code that the user's own `overrides` do not name: a file must not run code."""
    for key, field, value in walk(config, prefix):
        if rule_of(field).code:
            refuse_unnamed(key, value, overrides)


def refuse_unnamed(key: str, value: str | Sequence[str], overrides: Sequence[str] = ()) -> None:
    """Raise ConfigError if the value of setting `key`, or an item of its list, names code that `overrides` do not name."""
    named = {absolute(item) for each in overrides for item in _items(each.partition("=")[2].strip())}
    for item in [value] if isinstance(value, str) else value:
        if ":" in item and absolute(item) not in named:
            shown = value if isinstance(value, str) else f"'[{','.join(value)}]'"
            place, _, name = item.rpartition(":")
            fix = f"add {key}={shown}"
            if is_gone(place):
                fix = f"its file no longer exists, so add {key}=PATH/FILE.py:{name} with its new path"
            raise ConfigError(f"{key} names {item}, which is code and is not run unless you name it: {fix}.")


def _items(text: str) -> list[str]:
    """Return the items of a value such as [a, b]; a list of one item for any other value."""
    if not text.startswith("["):
        return [text]
    try:
        found = parse_yaml(text)
    except yaml.YAMLError:
        return []
    return [str(item) for item in found] if isinstance(found, list) else []


def code_settings(config: Any, prefix: str = "") -> dict[str, str | list[str]]:
    """Return the settings that name code, by dotted key."""
    found = {key: value for key, field, value in walk(config, prefix) if rule_of(field).code}
    return {key: value for key, value in found.items() if any(":" in item for item in _listed(value))}


def make_code_absolute(config: Any) -> None:
    """Make the file paths of references to code absolute, so that they are valid from any working directory."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            make_code_absolute(value)
        elif rule_of(field).code:
            known = [absolute(item) if Path(item.rpartition(":")[0]).is_file() else item for item in _listed(value)]
            setattr(config, field.name, known[0] if isinstance(value, str) else known)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _check_combinations(config: Any) -> None:
    for value in [getattr(config, field.name) for field in dataclasses.fields(config)]:
        if dataclasses.is_dataclass(value):
            _check_combinations(value)
    if hasattr(config, "validate"):
        config.validate()


def flat_settings(config: Any) -> dict[str, Any]:
    """Return every setting by dotted key, as plain values (enums by name)."""
    return {key: value.name if isinstance(value, enum.Enum) else value for key, _, value in walk(config)}


def changed_settings(
    before: Mapping[str, Any], config: Any, prefix: str = "", observes: Collection[str] | None = None
) -> dict[str, list[str]]:
    """Return the keys of the settings whose value changed, by their effect on a resumed run (`Resume`).

    Args:
        before: Settings from `flat_settings`; missing ones count as unchanged.
        observes: Observations that the policy reads; None means all.
    """
    found: dict[str, list[str]] = {"same": [], "changes": [], "restart": [], "weights": []}
    for key, field, value in walk(config, prefix):
        plain = value.name if isinstance(value, enum.Enum) else value
        if key in before and before[key] != plain:
            rule = rule_of(field)
            unread = observes is not None and rule.shapes not in ("", "action", *observes)
            found["restart" if rule.resume == "weights" and unread else rule.resume].append(key)
    return found
