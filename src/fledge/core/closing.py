"""Closing: close an object at the end of a `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """Base class whose `close` method is called at the end of a `with` block."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
