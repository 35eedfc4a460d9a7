"""From preset names and `key=value` words to a validated config, with an error that names the nearest valid key."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fledge.core.errors import ConfigError

C = TypeVar("C")

# NavRL's and the prior design's names for our fields
ALIASES = {
    "env.num_obstacles": "env.static_obstacles",
    "env_dyn.num_obstacles": "env.moving_obstacles",
    "moving_obstacles.floating": "env.floating_boxes",
    "env.moving_obstacles.floating": "env.floating_boxes",
    "max_frame_num": "total_frames",
    "eval_interval_episodes": "eval_episodes",
}
IGNORED = {"headless": "there is no window to hide"}


def build_config(kind: type[C], presets: Sequence[tuple[str, str]], overrides: Sequence[str]) -> C:
    """Return a config of `kind`: defaults, then presets as (group, name), then `key=value` words.

    Raises:
        ConfigError: for an unknown preset or key, or a value that does not fit its field.
    """
    node = OmegaConf.structured(kind)
    for group, name in presets:
        node = _merge(node, OmegaConf.create(load_preset(group, name)), f"preset {name}")
    known = list(field_help(kind))
    for word in overrides:
        key, value = split_word(word)
        if key in IGNORED:
            continue
        key = ALIASES.get(key, key)
        if key == "env" and _is_preset("env", str(value)):
            node = _merge(node, OmegaConf.create(load_preset("env", str(value))), word)
            continue
        if key not in known:
            raise ConfigError(unknown_key(key, known))
        try:
            OmegaConf.update(node, key, yaml.safe_load(value) if value else "", merge=True)
        except (OmegaConfBaseException, ValueError) as error:
            raise ConfigError(bad_value(kind, key, value, error)) from error
        except Exception as error:  # YAML's scanner has its own error tree
            raise ConfigError(f"{word!r} cannot be read: {str(error).splitlines()[0]}") from error
    try:
        config = OmegaConf.to_object(node)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from error
    assert isinstance(config, kind)
    return config


def split_word(word: str) -> tuple[str, str]:
    """Split `key=value`."""
    key, sign, value = word.partition("=")
    if not sign or not key:
        raise ConfigError(f"{word!r} is not an override: write key=value, for example env.num_envs=512.")
    return key.strip(), value.strip()


def unknown_key(key: str, known: Sequence[str]) -> str:
    last = {k.rsplit(".", 1)[-1]: k for k in reversed(known)}  # the first of several with one name
    near = [last[key]] if key in last else difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:  # compare by the last part: numenvs -> env.num_envs
        near = [last[m] for m in difflib.get_close_matches(key.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.4)]
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no setting {key}.{hint} `--help-config` lists them all."


def bad_value(kind: type, key: str, value: str, error: Exception) -> str:
    field = field_help(kind)[key]
    wanted = field.type_name
    return f"{key}={value} does not fit: {key} takes {wanted}."


@dataclasses.dataclass(frozen=True)
class FieldHelp:
    """What `--help-config` shows of one setting."""

    type_name: str
    default: str
    help: str


def field_help(kind: type, prefix: str = "") -> dict[str, FieldHelp]:
    """Return every setting of a config class by its dotted key."""
    found: dict[str, FieldHelp] = {}
    docs = _docstrings(kind)
    instance = kind()
    hints = {f.name: f for f in dataclasses.fields(kind)}
    for name in hints:
        value = getattr(instance, name)
        key = f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            found |= field_help(type(value), f"{key}.")
        elif isinstance(value, enum.Enum):
            choices = " or ".join(e.name for e in type(value))
            found[key] = FieldHelp(f"one of {choices}", value.name, docs.get(name, ""))
        else:
            names = {
                bool: "true or false",
                int: "a whole number",
                float: "a number",
                str: "text",
                list: "a list [a, b]",
            }
            found[key] = FieldHelp(names[type(value)], str(value), docs.get(name, ""))
    return found


def _docstrings(kind: type) -> dict[str, str]:
    """The strings under the fields of a dataclass."""
    import ast
    import inspect
    import textwrap

    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for line, following in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and is_text:
            docs[line.target.id] = str(following.value.value)  # type: ignore[attr-defined]
    return docs


def load_preset(group: str, name: str) -> dict[str, Any]:
    """Return the content of presets/<group>/<name>.yaml, or of a YAML file given by path."""
    folder = importlib.resources.files("fledge.tasks.navigation") / "presets" / group
    path: Any = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        names = preset_names(group)
        raise ConfigError(f"There is no {group} preset {name!r}; there are {', '.join(names)}.")
    content = OmegaConf.to_container(OmegaConf.create(path.read_text()))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a preset: it must map settings to values.")
    return {"env": content} if group == "env" else content  # type: ignore[return-value]


def preset_names(group: str) -> list[str]:
    """Names of the presets that ship with Fledge."""
    folder = importlib.resources.files("fledge.tasks.navigation") / "presets" / group
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def _is_preset(group: str, name: str) -> bool:
    return name in preset_names(group)


def _merge(node: Any, other: Any, source: str) -> Any:
    try:
        return OmegaConf.merge(node, other)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}") from error
