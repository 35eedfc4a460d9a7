"""Judging policies: episodes, tables, curves, reports.

The room has the name of what people call: `fledge.evaluate(agent, task, cfg, episodes)` is `episodes.evaluate`.
"""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A package that can be called."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from fledge.evaluate.episodes import evaluate

        return evaluate(*args, **options)


sys.modules[__name__].__class__ = _Room
