"""Runs something in a forked child, and says if it hangs there."""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0  # seconds; what works takes milliseconds


def in_child(call: Callable[[], Any]) -> Any:
    """Return the result of `call` in a forked child, as JSON; raise AssertionError if it fails or hangs there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = {"value": call()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], PATIENCE)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        assert ready, "the forked child hangs"
        with os.fdopen(reader, "rb", closefd=False) as stream:
            answer = json.loads(stream.read())
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    assert "error" not in answer, answer["error"]
    return answer["value"]
