"""Parse YAML text from files and command lines, and refuse text that could exhaust memory or the stack."""

from __future__ import annotations

import re
from typing import Any

import yaml

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
                    f"{event.value[:60]} would be a number in base 60: write it in quotes, or in seconds"
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
