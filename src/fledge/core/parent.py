"""Ending with the process that started this one, however that one ended: kill -9 leaves nobody to tell."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

LOOK_S = 1.0


def when_parent_ends(parent: int, then: Callable[[], object]) -> None:
    """Call `then`, on a thread of its own, once process `parent` is not this one's parent any more; or never was."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        then()

    threading.Thread(target=look, name="fledge-parent", daemon=True).start()
