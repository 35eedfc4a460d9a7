"""Errors for saved states that cannot be loaded. Such states come from files and are not trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fledge.core.errors import FledgeError, FormatError


def damaged(what: str, saved: str = "replay") -> FormatError:
    """Return the error for a saved state that no version of fledge writes."""
    return FormatError(f"The saved {saved} {what}: it is damaged, load an older checkpoint.")


@contextlib.contextmanager
def reading(saved: str = "replay") -> Iterator[None]:
    """Turn errors that a malformed saved state causes in the block into a FormatError."""
    try:
        yield
    except FledgeError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise damaged(f"cannot be read ({type(error).__name__}: {error})", saved) from error
