"""Start Warp without its messages. No other module of `core` imports this one, because that would load Warp."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

import warp as wp

from fledge.core.errors import StorageError


def start_warp() -> None:
    """Initialise Warp; further calls do nothing."""
    wp.config.enable_backward = False
    wp.config.log_level = wp.LOG_ERROR
    try:
        with contextlib.nullcontext() if _has_cuda_driver() else _quiet_native_stderr():
            wp.init()
    except OSError as error:
        raise StorageError(cache_text(wp.config.kernel_cache_dir, error.strerror)) from error
    folder = str(wp.config.kernel_cache_dir)
    if not os.access(folder, os.W_OK) and not os.listdir(folder):  # a filled cache may be read-only
        raise StorageError(cache_text(folder, "no permission"))


def cache_text(folder: str | None, why: str | None) -> str:
    """Return an error for a kernel cache that cannot be written."""
    return (
        f"{folder or 'The cache folder'} cannot be written ({why}), but Warp needs it for compiled kernels: set the "
        "environment variable WARP_CACHE_PATH to a folder that can be written."
    )


@contextlib.contextmanager
def _quiet_native_stderr() -> Iterator[None]:
    """Hide what native code prints to stderr inside the block: without a GPU, Warp prints a warning at every start."""
    sys.stderr.flush()
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def _has_cuda_driver() -> bool:
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
