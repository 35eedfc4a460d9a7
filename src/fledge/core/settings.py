"""Settings: dataclass fields that carry what may be asked about them.

    lr: float = setting(7e-4, above=0, below=1)
    num_envs: int = setting(1024, at_least=1, resume="restart")

A field's line says its limits and what changing it means for a run that is resumed; the string under the field is its
help text. Validation, `--help-config`, resume and evaluation read these, and nothing keeps a list of its own.

    resume="same"      nothing that is computed changes: the run goes on bit for bit
    resume="changes"   the run goes on, but not as it would have (the default)
    resume="restart"   envs cannot go on where they were: episodes begin again, and replay is empty
    resume="weights"   the saved weights would not fit: refused, when resuming and when a policy is flown
                       (with shapes="lidar": only if the policy reads that observation, else as "restart")
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from fledge.core.code import absolute
from fledge.core.errors import ConfigError

Resume = Literal["same", "changes", "restart", "weights"]
KEY = "fledge"  # of our entry in a field's metadata


def _plain(limit: float) -> str:
    """A limit as people write it: whole numbers in full."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Limits of a setting (of each item, where it is a list), and what changing it means for a saved run."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    items: tuple[int, int | None] | None = None  # fewest and most items of a list
    resume: Resume = "changes"
    shapes: str = ""  # the observation that this setting shapes, or "action"
    code: bool = False  # whether it may name code, module:object, which is run only for those who name it themselves

    def limits(self) -> str:
        """The limits in words, "" if there are none."""
        words = []
        if self.choices:
            words.append(" or ".join(self.choices))
        if self.at_least is not None and self.at_most is not None:
            words.append(f"{_plain(self.at_least)} to {_plain(self.at_most)}")
        elif self.at_least is not None:
            words.append(f"at least {_plain(self.at_least)}")
        elif self.at_most is not None:
            words.append(f"at most {_plain(self.at_most)}")
        if self.above is not None:
            words.append(f"greater than {_plain(self.above)}")
        if self.below is not None:
            words.append(f"less than {_plain(self.below)}")
        text = " and ".join(words)
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
    """A dataclass field with a `Rule`; a list or dataclass as default is copied for each config."""
    metadata = {KEY: Rule(**rule)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rule_of(field: dataclasses.Field[Any]) -> Rule:
    return field.metadata.get(KEY, Rule())


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every setting of a config, nested ones too: dotted key, field, value."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field, value


def check_settings(config: Any, prefix: str = "") -> None:
    """ConfigError unless every setting of a config keeps its limits; then its own `validate`, and those of its parts.

    Numbers must be finite, limits or not. `validate` is for what one field alone cannot say.
    """
    for key, field, value in walk(config, prefix):
        rule = rule_of(field)
        if not rule.allows(value):
            limits = rule.limits()
            if not is_finite(value):
                limits = f"finite and {limits}" if limits else "finite"
            shown = repr(value) if isinstance(value, str) else value
            raise ConfigError(f"{key} is {shown}, but must be {limits}.")
    _check_combinations(config)


def refuse_code(config: Any, words: Sequence[str] = (), prefix: str = "") -> None:
    """ConfigError if a setting names code that none of the user's own `key=value` words names: a file does not run any."""
    for key, field, value in walk(config, prefix):
        if rule_of(field).code:
            refuse_unnamed(key, value, words)


def refuse_unnamed(key: str, value: str, words: Sequence[str] = ()) -> None:
    """ConfigError if the value of a setting is code that none of the user's own `key=value` words names."""
    if ":" in value and absolute(value) not in {absolute(word.partition("=")[2].strip()) for word in words}:
        raise ConfigError(f"{key} is {value}, which is code and is not run unless you name it: add {key}={value}.")


def _check_combinations(config: Any) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            _check_combinations(value)
    if hasattr(config, "validate"):
        config.validate()


def is_finite(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(not isinstance(item, float) or math.isfinite(item) for item in items)


def flat_settings(config: Any) -> dict[str, Any]:
    """Every setting by its dotted key, as plain values (of an enum, its name)."""
    return {key: value.name if isinstance(value, enum.Enum) else value for key, _, value in walk(config)}


def changed_settings(
    before: Mapping[str, Any], config: Any, prefix: str = "", observes: Collection[str] | None = None
) -> dict[str, list[str]]:
    """Keys whose value is not what it was, by what that means for a saved run (`Resume`).

    Args:
        before: Settings by dotted key, as `flat_settings` gave them; what is missing there counts as unchanged.
        observes: Observations that the policy reads; None: all.
    """
    found: dict[str, list[str]] = {"same": [], "changes": [], "restart": [], "weights": []}
    for key, field, value in walk(config, prefix):
        plain = value.name if isinstance(value, enum.Enum) else value
        if key in before and before[key] != plain:
            rule = rule_of(field)
            unread = observes is not None and rule.shapes not in ("", "action", *observes)
            found["restart" if rule.resume == "weights" and unread else rule.resume].append(key)
    return found
