"""Describe the settings of a config class: type, default, limits and help text, for `--help-config` and errors."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fledge.core.errors import ConfigError
from fledge.core.settings import auto_keys, rule_of, walk

TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list [a, b]",
    type(None): "a number or null",
}


@dataclasses.dataclass(frozen=True)
class FieldHelp:
    """Description of one setting, as `--help-config` prints it."""

    type_name: str
    default: str
    help: str
    limits: str

    def __str__(self) -> str:
        return f"{self.help} ({self.type_name}{', ' + self.limits if self.limits else ''})"


def field_help(kind: type, prefix: str = "") -> dict[str, FieldHelp]:
    """Return the description of every setting of a config class, by dotted key."""
    found: dict[str, FieldHelp] = {}
    docs, instance = _docstrings(kind), kind()
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
    for key in auto_keys(kind):
        if key in found:
            found[key] = dataclasses.replace(found[key], type_name=f"{found[key].type_name} or auto")
    return found


def written(value: Any) -> str:
    """Format a value as a user would type it."""
    return value.name if isinstance(value, enum.Enum) else "null" if value is None else str(value)


def explain_settings(layers: Sequence[tuple[str, Any]], prefix: str = "") -> Iterator[str]:
    """Yield two lines per setting: `key=value` with its origin (unless it is the default), and its help text below.

    Args:
        layers: Named configs of one class: the defaults first, the one to explain last. The origin of a value is the
            layer that changed it last.
    """
    kind = type(layers[-1][1])
    values = [{f"{prefix}{key}": written(value) for key, _, value in walk(config)} for _, config in layers]
    for key, field in field_help(kind, prefix).items():
        value = values[-1][key]
        first = len(layers) - 1
        while first and values[first - 1][key] == value:
            first -= 1
        source = f"  # {layers[first][0]}; default {values[0][key] or 'none'}" if first else ""
        yield f"{key}={value}{source}\n    {field}"


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Return the error message for a key that is not among the `known` settings, with the most similar one as a hint."""
    near = nearest_key(key, known)
    hint = f" Did you mean {near}?" if near else ""
    return f"There is no setting {key}.{hint} `fledge train TASK --help-config` lists all settings."


def nearest_key(key: str, known: Sequence[str], cutoff: float = 0.7) -> str | None:
    """Return the known setting that a mistyped key most likely means; None if no setting is similar enough.

    Only the last parts of the names are compared: by spelling (numenvs finds env.num_envs), by common words (envs finds
    env.num_envs), by beginnings (num_obs finds num_obstacles) and by initials (learning_rate finds
    ppo.lr). A setting in the key's own section is preferred.
    """
    section, _, name = key.lower().rpartition(".")

    def nearness(candidate: str) -> float:
        of, _, other = candidate.lower().rpartition(".")
        ours, theirs = _words(name), _words(other)
        score = difflib.SequenceMatcher(None, name, other).ratio()
        if ours and theirs and (ours <= theirs or theirs <= ours):
            score = max(score, 0.7 + 0.3 * len("".join(ours & theirs)) / len("".join(ours | theirs)))
        if len(name) > 3 and other.startswith(name):
            score = max(score, 0.85)
        if other == "".join(word[0] for word in name.split("_") if word) and len(other) > 1:
            score = max(score, 0.9)
        return score + (0.1 if section and section == of else 0.0)

    near = max(known, key=nearness, default=None)
    return near if near is not None and nearness(near) >= cutoff + (0.1 if section else 0.0) else None


def _words(name: str) -> set[str]:
    """Return the words of a name that are joined by underscores, each without a final s."""
    return {word.removesuffix("s") or word for word in name.split("_") if word}


@functools.cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the strings under the fields of a dataclass and of its base classes."""
    docs: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part))).body[0]
        except (OSError, TypeError, SyntaxError):  # no source file: made at run time, or typed into a REPL
            continue
        for line, below in itertools.pairwise(getattr(tree, "body", ())):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    docs[name] = " ".join(str(text).split())  # on one line
    return docs


def check_config_class(kind: type, what: str) -> None:
    """Raise ConfigError unless a dataclass can be a config: every field has a default and a type that YAML supports."""
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
