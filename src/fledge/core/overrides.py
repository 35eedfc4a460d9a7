"""From presets and `key=value` words to a config, with an error that names the nearest valid key.

defaults  <-  presets (mappings, from YAML)  <-  words of the command line

Keys mean the same in a YAML file as on the command line, other people's names for them too.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import functools
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fledge.core.code import is_reference
from fledge.core.errors import ConfigError
from fledge.core.settings import rule_of, walk

C = TypeVar("C")
Preset = tuple[str, Mapping[str, Any]]  # what to call it in an error, and its content
SETTING = re.compile(r"[\w.]+=")  # how a key=value word begins; crank(shot=0.8) is a value
TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list [a, b]",
    type(None): "a number or null",
}


def build_config(
    kind: type[C],
    presets: Sequence[Preset],
    words: Sequence[str],
    aliases: Mapping[str, str] | None = None,
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    prefix: str = "",
) -> C:
    """Return a config of `kind`: defaults, then presets, then `key=value` words.

    Args:
        aliases: Other people's names for our settings, or for whole sections of them: an alias for "" is accepted and
            ignored, one for "=value" is accepted if that is its value. "total_frames * env.num_envs" means the value times
            that setting (or divided by it, or by a number), as it is in the end. Where a name is also one of ours, the
            alias is for plain values, and ours for what names code: reward=shaped, reward=module:object.
        groups: Presets by group and name, which `group=name` puts in place: in the section of the group's name, or, if
            there is no such section, in the whole.
        prefix: What keys begin with in words and in errors, where `kind` is a part of a larger config: "env.".

    Raises:
        ConfigError: for an unknown key, or a value that does not fit its field.
    """
    config = _Config(kind, aliases or {}, groups or {}, prefix)
    for source, content in presets:
        for key, value in leaves(content):
            config.put(f"{prefix}{key}", value, f"{source}: ")
    for word in words:
        config.put(*split_word(word), is_word=True)
    config.finish()
    return _to_object(config.node, kind)


class _Config:
    """A config in the making."""

    def __init__(
        self,
        kind: type,
        aliases: Mapping[str, str],
        groups: Mapping[str, Mapping[str, Mapping[str, Any]]],
        prefix: str,
    ) -> None:
        self.node: Any = OmegaConf.structured(kind)
        self.known = {f"{prefix}{key}": field for key, field in field_help(kind).items()}
        self.aliases, self.groups, self.prefix = aliases, groups, prefix
        self.scaled: dict[str, tuple[str, list[str]]] = {}  # settings to be multiplied: how they were written, by what

    def put(self, key: str, value: Any, source: str = "", is_word: bool = False) -> None:
        """Set one value, which a word gives as text; `source` begins an error."""
        ours, *factors = self._our_name(key, value, source).split() or [""]
        if not ours or (value is None and any(k.startswith(f"{ours}.") for k in self.known)):  # an empty section
            return
        is_section = any(name.startswith(f"{ours}.") for name in self.known)
        if isinstance(value, str) and value in self.groups.get(ours, {}):
            content = self.groups[ours][value]
            self.node = _merge(self.node, {ours: content} if is_section else content, f"{key}={value}")
            return
        if ours in self.groups:
            names = ", ".join(self.groups[ours])
            hint = f"; settings are {key}.name=value" if is_section else ""
            raise ConfigError(f"{source}{key}={value}: {key} takes a preset ({names}){hint}.")
        if ours not in self.known:
            raise ConfigError(source + unknown_key(ours, list(self.known)))
        self.scaled.pop(ours, None)
        if factors:
            self.scaled[ours] = f"{source}{key}={value}", factors
        try:
            parsed = _parse(value, self.known[ours]) if is_word else value
            self._set(ours, parsed)
        except (OmegaConfBaseException, ValueError) as error:
            takes = self.known[ours].type_name
            raise ConfigError(f"{source}{ours}={value} does not fit: {ours} takes {takes}.") from error
        except Exception as error:  # YAML's scanner has its own error tree
            raise ConfigError(f"{source}{key}={value} cannot be read: {str(error).splitlines()[0]}.") from error

    def _set(self, key: str, value: Any) -> None:
        OmegaConf.update(self.node, key.removeprefix(self.prefix), _whole(value, self.known[key]), merge=True)

    def _get(self, key: str) -> Any:
        return OmegaConf.select(self.node, key.removeprefix(self.prefix))

    def finish(self) -> None:
        """Multiply what is written in other units, now that all settings are known."""
        for key, (written_as, factors) in self.scaled.items():
            value = self._get(key)
            for sign, name in zip(factors[::2], factors[1::2], strict=True):
                factor = self._get(name) if name in self.known else float(name)
                value = value * factor if sign == "*" else value / factor
            try:
                self._set(key, value)
            except (OmegaConfBaseException, ValueError) as error:
                raise ConfigError(f"{written_as} does not fit: {key} would be {value:g}.") from error

    def _our_name(self, key: str, value: Any, source: str) -> str:
        """The setting that a key means, "" for one to ignore."""
        parts = key.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]  # the key, then sections around it
        theirs = next((name for name in names if name in self.aliases), None)
        is_both = theirs == key and isinstance(value, str) and value != "" and not is_reference(value)
        if theirs is None or (key in self.known and not is_both):
            return key
        ours = self.aliases[theirs]
        if not ours.startswith("="):
            return ours
        if yaml.safe_load(ours[1:]) != (yaml.safe_load(value) if isinstance(value, str) else value):
            raise ConfigError(f"{source}{key}={value} does not fit: here it is always {ours[1:]}.")
        return ""


def value_given(words: Sequence[str], key: str, aliases: Mapping[str, str] | None = None) -> str | None:
    """What `key=value` words say about a setting, under any of its names; the last one counts."""
    names = {key, *(theirs for theirs, ours in (aliases or {}).items() if ours == key)}
    found = [value for name, value in (split_word(word) for word in words if "=" in word) if name in names]
    return found[-1] if found else None


def flags_as_words(words: Sequence[str], not_values: Collection[str] = ()) -> list[str]:
    """Words in which `--name value` stands as `name=value`, and a `--name` that no value follows as `name=true`.

    Args:
        not_values: What is no value, wherever it stands, such as the name of a task.

    Raises:
        ConfigError: for `-n`, which says too little.
    """
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            if not sign:
                ends = not rest or rest[0].startswith("--") or rest[0] in not_values or SETTING.match(rest[0])
                value = "true" if ends else rest.pop(0)
            out.append(f"{name.replace('-', '_')}={value}")
        elif word.startswith("-") and "=" not in word:
            raise ConfigError(f"{word} is no option: write --name value, or name=value, for example num_envs=512.")
        else:
            out.append(word)
    return out


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings in nested mappings, by dotted key."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parse(value: str, field: FieldHelp) -> Any:
    """What a word says; text is taken as it stands, unless it is quoted."""
    if not value or (field.type_name == TYPE_NAMES[str] and value[0] not in "'\""):
        return value
    return yaml.safe_load(value)


def _whole(value: Any, field: FieldHelp) -> Any:
    """A whole number that is written otherwise, 1e6, as one; anything else as it is."""
    if field.type_name != TYPE_NAMES[int] or not isinstance(value, str | float):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else value


def from_plain(kind: type[C], content: Mapping[str, Any]) -> C:
    """A config from plain nested values, as a saved file holds them; settings it does not name get their defaults."""
    return _to_object(_merge(OmegaConf.structured(kind), content, f"a saved {kind.__name__}"), kind)


def to_plain(config: Any) -> dict[str, Any]:
    """A config as plain nested values: what `from_plain` reads."""
    plain: Any = OmegaConf.to_container(OmegaConf.structured(config), resolve=True, enum_to_str=True)
    return plain


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key as nested dicts."""
    out: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        part = out
        for name in path:
            part = part.setdefault(name, {})
        part[last] = value
    return out


def split_word(word: str) -> tuple[str, str]:
    """Split `key=value`."""
    key, sign, value = word.partition("=")
    if not sign or not key:
        raise ConfigError(f"{word!r} is not an override: write key=value, for example env.num_envs=512.")
    return key.strip(), value.strip()


def unknown_key(key: str, known: Sequence[str]) -> str:
    last = {k.rsplit(".", 1)[-1]: k for k in reversed(known)}  # the first of several with one name
    near = [last[key]] if key in last else difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not near:  # compare by the last part: numenvs -> env.num_envs
        near = [last[m] for m in difflib.get_close_matches(key.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.6)]
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no setting {key}.{hint} `--help-config` lists them all."


@dataclasses.dataclass(frozen=True)
class FieldHelp:
    """What `--help-config` shows of one setting."""

    type_name: str
    default: str
    help: str
    limits: str

    def __str__(self) -> str:
        return f"{self.help} ({self.type_name}{', ' + self.limits if self.limits else ''})"


def field_help(kind: type, prefix: str = "") -> dict[str, FieldHelp]:
    """Return every setting of a config class by its dotted key."""
    found: dict[str, FieldHelp] = {}
    docs = _docstrings(kind)
    instance = kind()
    for field in dataclasses.fields(kind):
        value = getattr(instance, field.name)
        key, limits = f"{prefix}{field.name}", rule_of(field).limits()
        if dataclasses.is_dataclass(value):
            found |= field_help(type(value), f"{key}.")
            continue
        type_name = TYPE_NAMES.get(type(value), f"a {type(value).__name__}")
        if isinstance(value, enum.Enum):
            type_name = f"one of {' or '.join(e.name for e in type(value))}"
        found[key] = FieldHelp(type_name, written(value), docs.get(field.name, ""), limits)
    return found


def written(value: Any) -> str:
    """A value as one would type it."""
    return value.name if isinstance(value, enum.Enum) else "null" if value is None else str(value)


def explain_settings(layers: Sequence[tuple[str, Any]], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Two lines about every setting: `key=value`, with where it comes from if not from the defaults, and its meaning.

    Args:
        layers: Configs of one class, each with a name: the defaults first, the one to explain last. A value comes from
            the first of them that has it, as all that follow do.
    """
    kind = type(layers[-1][1])
    values = [{f"{prefix}{key}": written(value) for key, _, value in walk(config)} for _, config in layers]
    for key, field in field_help(kind, prefix).items():
        value = values[-1][key]
        first = len(layers) - 1
        while first and values[first - 1][key] == value:
            first -= 1
        source = f"  # {layers[first][0]}; default {values[0][key] or 'none'}" if first else ""
        yield f"{key}={value}{source}", str(field)


@functools.cache
def _docstrings(kind: type) -> dict[str, str]:
    """The strings under the fields of a dataclass and of those it inherits from."""
    docs: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        except (OSError, TypeError, SyntaxError):  # made at run time, or typed in
            continue
        if not isinstance(tree, ast.ClassDef):
            continue
        for line, below in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and is_text:
                docs[line.target.id] = str(below.value.value)  # type: ignore[attr-defined]
    return docs


def check_config_class(kind: type, what: str) -> None:
    """ConfigError unless a dataclass can be a config: every field typed, with a default, of a type that YAML knows."""
    try:
        OmegaConf.structured(kind())
        OmegaConf.structured(kind)
        field_help(kind)
    except (OmegaConfBaseException, TypeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{what} cannot be used ({reason}): every field needs a type (bool, int, float, str, an Enum, a list of these, "
            "or such a dataclass) and a default."
        ) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file."""
    try:
        content = OmegaConf.to_container(OmegaConf.create(path.read_text()))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path} cannot be read{where}: {str(error).splitlines()[0]}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a preset: it must map settings to values.")
    return content  # type: ignore[return-value]


def _merge(node: Any, content: Mapping[str, Any], source: str) -> Any:
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
