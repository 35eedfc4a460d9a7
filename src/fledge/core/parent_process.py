"""Notice when the parent process has ended, even by kill -9, so that a child process can end too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

POLL_S = 1.0


def when_parent_ends(parent: int, then: Callable[[], object]) -> None:
    """Call `then` on a background thread as soon as process `parent` is not the parent of this process (any more)."""

    def poll() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        then()

    threading.Thread(target=poll, name="fledge-parent", daemon=True).start()
