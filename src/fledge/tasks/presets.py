"""Presets of a task: YAML files in folders by group, training defaults, and other projects' names for settings.

FOLDER/train/NAME.yaml      training presets          FOLDER/hardware/NAME.yaml    sizes for a machine
FOLDER/env/NAME.yaml        env presets               FOLDER/aliases.yaml          other name -> our setting
FOLDER/GROUP/NAME.yaml      settings of the env that GROUP=NAME chooses, for any other name of a group, such as perception
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError, did_you_mean
from fledge.core.overrides import read_yaml
from fledge.core.paths import path_hint

GROUPS = ("train", "env", "hardware")


class Presets:
    """The presets of a task.

    Args:
        folder: Folder of the YAML files; None if the task has no presets.
        defaults: Settings that every training starts from, where they differ from the general defaults.
    """

    def __init__(self, folder: Path | None = None, defaults: Mapping[str, Any] | None = None) -> None:
        self.folder, self.defaults = folder, dict(defaults or {})

    def names(self, group: str) -> list[str]:
        """Return the names of the presets in a group: "train", "env", "hardware", or a group of the task's own."""
        return [] if self.folder is None else sorted(p.stem for p in (self.folder / group).glob("*.yaml"))

    def load(self, group: str, name: str) -> dict[str, Any]:
        """Return the content of a preset, or of a YAML file given by path.

        Raises:
            ConfigError: if there is no such preset or file.
        """
        is_path = name.endswith((".yaml", ".yml"))
        if not is_path and name not in self.names(group):
            known, near = ", ".join(self.names(group)), did_you_mean(name, self.names(group))
            choices = f"Choose one of {known}, or pass" if known else "This task has none: pass"
            raise ConfigError(f"There is no {group} preset {name!r}.{near} {choices} a YAML file.")
        path = Path(name) if is_path or self.folder is None else self.folder / group / f"{name}.yaml"
        if not path.is_file():
            raise ConfigError(
                f"There is no preset file {path}: give the path of a YAML file, or a preset's name.{path_hint(path)}"
            )
        return read_yaml(path)

    @functools.cached_property
    def env_groups(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Settings of the env that the task's own groups choose (perception=typical), by group and name."""
        folders = [] if self.folder is None else sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        return {group: self.load_all(group) for group in folders if group not in GROUPS and self.names(group)}

    def load_all(self, group: str) -> dict[str, dict[str, Any]]:
        """Return the content of every preset in a group, by name."""
        return {name: self.load(group, name) for name in self.names(group)}

    def default(self, algo: str) -> str | None:
        """Return an algorithm's default training preset: the preset of the same name, else `fast`, else None."""
        names = self.names("train")
        return algo if algo in names else "fast" if "fast" in names else None

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        """Other projects' setting names -> our names; "" ignores the setting, "=VALUE" accepts only that value."""
        path = None if self.folder is None else self.folder / "aliases.yaml"
        return {str(k): str(v or "") for k, v in read_yaml(path).items()} if path is not None and path.is_file() else {}
