"""Parse YAML text from files and command lines, and refuse text that could exhaust memory or the stack."""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fledge.core.errors import ConfigError
from fledge.core.paths import check_readable

MAX_FILE = 1_000_000  # characters of a file
MAX_DEPTH = 32  # nested mappings and lists
MAX_NUMBER = 100  # characters
BASE_60 = re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?")  # YAML 1.1 reads 1:30 as 90
NUMBER = re.compile(r"[-+]?(0x|0b)?[\d_.a-fA-F+-]+")


def check_yaml(text: str | bytes) -> None:
    """Raise yaml.YAMLError if a YAML text has aliases, tags, deep nesting, numbers in base 60, or very long numbers."""
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("anchors with aliases (&name, *name) are not allowed")
        if getattr(event, "tag", None) is not None:
            raise yaml.YAMLError(f"tags such as {event.tag[:60]!r} are not allowed")
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:  # without quotes
            if BASE_60.fullmatch(event.value):
                raise yaml.YAMLError(
                    f"{event.value[:60]} would be a number in base 60: write it in quotes if it is text"
                )
            if len(event.value) > MAX_NUMBER and NUMBER.fullmatch(event.value):
                raise yaml.YAMLError(f"a number has {len(event.value):,} characters, but may have {MAX_NUMBER}")


def parse_yaml(text: str | bytes) -> Any:
    """Return the value of a YAML text; raise yaml.YAMLError if `check_yaml` refuses it or it cannot be parsed."""
    check_yaml(text)
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # 2026-13-45, or a list as a key
        raise yaml.YAMLError(f"a value cannot be read ({error})") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file, nested; raise ConfigError if it cannot be read."""
    try:
        check_readable(path)
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ConfigError(
                f"{path} is too large: a file of settings may have at most {MAX_FILE:,} characters. Use another file."
            )
        content = copy.deepcopy(_content(text))
    except (OSError, yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, LookupError) as error:
        if isinstance(error, ConfigError):
            raise
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path} cannot be read{where}: {problem_of(error)}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a file of settings: it must consist of lines such as `seed: 3`.")
    return content


@functools.lru_cache(maxsize=256)
def _content(text: str) -> Any:
    """Return the content of a YAML file, not to be changed. Kept, because a config asks for every preset several times."""
    check_yaml(text)
    return OmegaConf.to_container(OmegaConf.create(text))


def problem_of(error: Exception) -> str:
    """Return the cause of an error in one line. Errors of YAML keep it in `problem`, without the line number."""
    return str(getattr(error, "problem", None) or error).splitlines()[0]
