"""Import optional packages; if one is missing, the error names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fledge.core.errors import MissingExtraError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Wrap the imports of packages that `pip install 'fledge[name]'` installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise MissingExtraError(f"{package} is not installed: pip install 'fledge[{name}]'.") from error
