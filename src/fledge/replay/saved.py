"""What is said about a saved state that cannot be taken over. Such a state comes from a file that nobody vouches for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fledge.core.errors import FledgeError, FormatError


def damaged(what: str, saved: str = "replay") -> FormatError:
    """The error for a saved state that is not one that was ever written."""
    return FormatError(f"the saved {saved} {what}: it is damaged, load an older checkpoint.")


@contextlib.contextmanager
def reading(saved: str = "replay") -> Iterator[None]:
    """Whatever goes wrong in the block with a saved state of the wrong form is a FormatError."""
    try:
        yield
    except FledgeError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise damaged(f"cannot be read ({type(error).__name__}: {error})", saved) from error
