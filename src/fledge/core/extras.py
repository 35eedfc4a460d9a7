"""Optional packages: where one is missing, the error says how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fledge.core.errors import MissingExtraError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of what `pip install 'fledge[name]'` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise MissingExtraError(f"{package} is not installed: pip install 'fledge[{name}]'.") from error
