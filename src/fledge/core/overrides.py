"""Build a config from defaults, presets and `key=value` overrides.

Presets (nested mappings, from YAML) change the defaults, and overrides (`key=value`) change the result. Both may use aliases.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fledge.core.code import is_reference
from fledge.core.config_help import TYPE_NAMES, field_help, unknown_key
from fledge.core.errors import ConfigError
from fledge.core.paths import shorten
from fledge.core.settings import auto_keys, flat_settings
from fledge.core.yaml_text import parse_yaml, problem_of
from fledge.core.yaml_text import read_yaml as read_yaml

C = TypeVar("C")
Preset = tuple[str, Mapping[str, Any]]  # its name in error messages, and its content


def build_config(
    kind: type[C],
    presets: Sequence[Preset],
    overrides: Sequence[str],
    aliases: Mapping[str, str] | None = None,
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    prefix: str = "",
) -> C:
    """Return a config of `kind`: its defaults, changed by presets, then by `key=value` overrides.

    Args:
        aliases: For each other name, the setting or section that it stands for. "" ignores the name; "=value" accepts it
            only with that value; "total_frames * env.num_envs" sets total_frames to the given value times the final
            env.num_envs ("/" divides; numbers are allowed too). If a name is both an alias and a setting, a reference to
            code (reward=module:object) is given to the setting, and other text (reward=shaped) to what the alias stands for.
        groups: Presets by group and name. `group=name` merges a preset into the section called `group`, or into the whole
            config if there is no such section.
        prefix: Prefix of keys in overrides and errors if `kind` is a part of a larger config: "env.".

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    config = _Config(kind, aliases or {}, groups or {}, prefix)
    for source, content in presets:
        for key, value in sorted(
            leaves(content), key=lambda leaf: leaf[0] != "auto"
        ):  # then the settings that add to it
            config.put(f"{prefix}{key}", value, f"{source}: ")
    given: dict[str, tuple[str, str]] = {}  # for each setting, the name (or alias) and the value that the user wrote
    for override in overrides:
        key, value = split_override(override)
        ours = config.put(key, value, is_text=True)
        other, before = given.setdefault(ours, (key, value))
        if ours and other != key and before != value:
            raise ConfigError(
                f"{other}={before} and {key}={value} both set {ours}, but to different values: leave one of them out."
            )
    config.finish()
    return _to_object(config.node, kind)


class _Config:
    """A config under construction."""

    def __init__(
        self, kind: type, aliases: Mapping[str, str], groups: Mapping[str, Mapping[str, Mapping[str, Any]]], prefix: str
    ) -> None:
        self.node: Any = copy.deepcopy(_defaults(kind))
        self.known = {f"{prefix}{key}": field for key, field in field_help(kind).items()}
        self.aliases, self.groups, self.prefix = aliases, groups, prefix
        self.auto_keys = auto_keys(kind)
        self.scaled: dict[str, tuple[str, list[str]]] = {}  # settings to multiply: as the user wrote them, factors

    def put(self, key: str, value: Any, source: str = "", is_text: bool = False) -> str:
        """Set one value, and return the name of the setting ("" if the key is ignored or names a preset).

        Args:
            key: Name or alias of the setting.
            source: Beginning of error messages.
            is_text: The value is text of a command line, to be parsed as YAML.
        """
        ours, *factors = self._our_name(key, value, source).split() or [""]
        is_section = ours not in self.known and any(name.startswith(f"{ours}.") for name in self.known)
        if not ours or (value is None and is_section):  # ignored, or an empty section
            return ""
        name = preset_name(value, self.groups.get(ours, {}))
        if name:
            content = self.groups[ours][name]
            self.node = _merge(self.node, {ours: content} if is_section else content, f"{key}={value}")
            return ""
        if ours in self.groups:
            names = ", ".join(self.groups[ours])
            hint = f", or set single values with {key}.NAME=VALUE" if is_section else ""
            raise ConfigError(f"{source}{key}={value} is not a preset: choose one of {names}{hint}.")
        if ours not in self.known:
            section = ours.rpartition(".")[0]
            others = [
                name for name, means in self.aliases.items() if means and name.rpartition(".")[0] == section != ""
            ]
            raise ConfigError(source + unknown_key(ours, [*self.known, *others]))
        _refuse_interpolation(value, f"{source}{key}")
        if ours in self.auto_keys and not factors and self._choose_auto(ours, value, is_text):
            return ours
        self.scaled.pop(ours, None)
        if factors:
            self.scaled[ours] = f"{source}{key}={value}", factors
        try:
            is_verbatim = (
                not is_text or not value or (self.known[ours].type_name == TYPE_NAMES[str] and value[0] not in "'\"")
            )
            self._set(ours, value if is_verbatim else parse_yaml(value))
        except (OmegaConfBaseException, ValueError) as error:
            takes = self.known[ours].type_name
            raise ConfigError(f"{source}{ours}={shorten(value)} does not fit: {ours} takes {takes}.") from error
        except Exception as error:  # YAML's scanner has its own error tree
            raise ConfigError(f"{source}{key}={shorten(value)} cannot be read: {problem_of(error)}.") from error
        return ours

    def _set(self, key: str, value: Any) -> None:
        if self.known[key].type_name.startswith(TYPE_NAMES[int]) and isinstance(value, str | float):
            with contextlib.suppress(ValueError):
                value = int(float(value)) if float(value).is_integer() else value  # 1e6
        OmegaConf.update(self.node, key.removeprefix(self.prefix), value, merge=True)

    def _choose_auto(self, key: str, value: Any, is_override: bool) -> bool:
        """Add a setting to the list `auto` if its value is auto; remove it if an override gives a number.

        Return whether the value was auto. The setting keeps its number, with which the run begins; presets may change it.
        """
        others = [name for name in self.node.auto if name != key]
        if value == "auto" or is_override:
            self.node.auto = [*others, key] if value == "auto" else others
        return bool(value == "auto")

    def _get(self, key: str) -> Any:
        return OmegaConf.select(self.node, key.removeprefix(self.prefix))

    def finish(self) -> None:
        """Multiply or divide the values that were set by an alias such as "total_frames * env.num_envs".

        Call this last, as the factors may be settings.
        """
        for key, (written_as, factors) in self.scaled.items():
            value = self._get(key)
            for sign, name in zip(factors[::2], factors[1::2], strict=True):
                factor = self._get(name) if name in self.known else float(name)
                value = value * factor if sign == "*" else value / factor
            try:
                self._set(key, value)
            except (OmegaConfBaseException, ValueError) as error:
                takes = self.known[key].type_name
                raise ConfigError(f"{written_as} sets {key} to {value:g}, but {key} takes {takes}.") from error

    def _our_name(self, key: str, value: Any, source: str) -> str:
        """Return the setting that a key or alias stands for, with its factors if any; "" if the key is to be ignored."""
        parts = key.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]  # the key, then sections around it
        theirs = next((name for name in names if name in self.aliases), None)
        is_both = theirs == key and isinstance(value, str) and value != "" and not is_reference(value)
        if theirs is None or (key in self.known and not is_both):
            return key
        ours = self.aliases[theirs]
        if not ours.startswith("="):
            return ours
        if parse_yaml(ours[1:]) != (parse_yaml(value) if isinstance(value, str) else value):
            raise ConfigError(
                f"{source}{key}={value} is not supported: Fledge always uses {ours[1:]}. Leave {key} out."
            )
        return ""


def preset_name(value: Any, names: Collection[str]) -> str:
    """Return the preset that a value names, ignoring case, spaces and hyphens ("RTX 3060" is rtx3060); "" if none."""
    if not isinstance(value, str):
        return ""
    plain = re.sub(r"[\s\"'_-]", "", value.lower())
    return value if value in names else next((name for name in names if name == plain), "")


def value_given(overrides: Sequence[str], key: str, aliases: Mapping[str, str] | None = None) -> str | None:
    """Return the last value that overrides give to a setting, by its name or an alias; None if they give none."""
    names = {key, *(theirs for theirs, ours in (aliases or {}).items() if ours == key)}
    found = [value for name, value in (split_override(item) for item in overrides if "=" in item) if name in names]
    return found[-1] if found else None


def split_override(override: str) -> tuple[str, str]:
    """Split `key=value` into key and value; raise ConfigError if the text has another form."""
    key, sign, value = override.partition("=")
    if not sign or not key:
        raise ConfigError(f"{override!r} is not an override: write key=value, for example env.num_envs=512.")
    return key.strip(), value.strip()


def settings_to_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings of a Python call as `key=value` overrides, as the command line takes them.

    Args:
        settings: Values by name, by dotted name, or in nested mappings: {"env": {"num_envs": 64}, "ppo.lr": 3e-4}.
    """
    return [f"{key}={_override_value(value)}" for key, value in leaves(settings)]


def _override_value(value: Any) -> str:
    """Return a value as text, as it would be written on the command line."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # of NumPy and torch
        value = value.tolist()
    if isinstance(value, list | tuple):
        return f"[{', '.join(json.dumps(item) if isinstance(item, str) else _override_value(item) for item in value)}]"
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    if callable(value) and hasattr(value, "__qualname__"):  # a reward or an algorithm
        return f"{value.__module__}:{value.__qualname__}"
    raise ConfigError(
        f"{value!r} ({type(value).__name__}) cannot be the value of a setting: pass a number, text, a bool, a list, or None."
    )


# ---- plain nested values -----------------------------------------------------------------------------------------------


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of every setting in nested mappings."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key as nested dicts."""
    out: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        part = out
        for name in path:
            part = part.setdefault(name, {})
        part[last] = value
    return out


def from_plain(kind: type[C], content: Mapping[str, Any]) -> C:
    """Build a config from plain nested values of a saved file; missing settings get their defaults."""
    base: type = kind  # as mypy takes no type[C] for hashable
    return _to_object(_merge(_defaults(base), _changes(kind, leaves(content)), f"a saved {kind.__name__}"), kind)


def to_plain(config: Any) -> dict[str, Any]:
    """Return a config as plain nested values, from which `from_plain` builds it again."""
    return copy.deepcopy(nested(flat_settings(config)))


def changes_of(config: Any) -> dict[str, Any]:
    """Return the settings of a config that differ from the defaults, as plain nested values.

    As the first preset of `build_config` they give the same config again, in a third of the time of `to_plain`.
    """
    return _changes(type(config), flat_settings(config).items())


def _changes(kind: type, settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the settings that differ from the defaults in value or type, nested."""
    defaults = _default_texts(kind)
    return copy.deepcopy(nested({key: value for key, value in settings if repr(value) != defaults.get(key)}))


def _refuse_interpolation(value: Any, source: str) -> None:
    """Raise ConfigError if a value has the form ${...}, in which OmegaConf would read environment variables."""
    if "${" in str(value):
        raise ConfigError(f"{source} contains '${{', which settings do not allow: write the value itself.")


@functools.lru_cache(maxsize=64)
def _default_texts(kind: type) -> dict[str, str]:
    return {key: repr(value) for key, value in flat_settings(kind()).items()}


@functools.lru_cache(maxsize=64)
def _defaults(kind: type) -> Any:
    """Return a config class as a node of OmegaConf, not to be changed. To build one takes six times as long as to copy it."""
    return OmegaConf.structured(kind)


def _merge(node: Any, content: Mapping[str, Any], source: str) -> Any:
    _refuse_interpolation(content, source)
    try:
        return OmegaConf.merge(node, OmegaConf.create(dict(content)))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}.") from error


def _to_object(node: Any, kind: type[C]) -> C:
    try:
        config = OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{str(error).splitlines()[0]}.") from error
    assert isinstance(config, kind)
    return config
