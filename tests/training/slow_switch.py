"""A switch between hosts that delays every frame and loses some, for kernels without netem.

Each host gets a TAP device as its interface eth0; a forked process passes frames between them. The hosts' TCP stacks are the
kernel's, so they wait and send again as on a real network of that kind.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import time
from collections.abc import Sequence

NEW_NETWORK = 0x40000000
TAP, NO_HEADER, SET_NAME = 0x0002, 0x1000, 0x400454CA
FRAME = 65536


def open_tap(space: str, name: str) -> int:
    """Create an interface in a network namespace, and return the descriptor through which its frames go."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as own, open(f"/var/run/netns/{space}") as there:
        if libc.setns(there.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, SET_NAME, struct.pack("16sH22x", name.encode(), TAP | NO_HEADER))
        libc.setns(own.fileno(), NEW_NETWORK)
    return tap


def start_switch(spaces: Sequence[str], delay_ms: float, loss: float, seed: int = 0) -> int:
    """Connect namespaces by eth0; return the id of the process that passes their frames, which the caller kills.

    Args:
        delay_ms: Time from one host to another.
        loss: Share of frames that are lost, in percent.
    """
    taps = [open_tap(space, "eth0") for space in spaces]
    process = os.fork()
    if process:
        for tap in taps:
            os.close(tap)
        return process
    try:
        forward(taps, delay_ms / 1e3, loss / 100, random.Random(seed))
    finally:
        os._exit(1)


def forward(taps: Sequence[int], delay_s: float, loss: float, rng: random.Random) -> None:
    """Pass every frame of one host to all others after a delay, or lose it; never returns."""
    waiting: list[tuple[float, int, int, bytes]] = []  # due, number, from which tap, frame
    number = 0
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for tap in select.select(taps, [], [], pause)[0]:
            with contextlib.suppress(OSError):
                while frame := os.read(tap, FRAME):
                    number += 1
                    if rng.random() >= loss:
                        heapq.heappush(waiting, (time.monotonic() + delay_s, number, tap, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(waiting)
            for tap in taps:
                if tap != source:
                    with contextlib.suppress(OSError):  # that host's link is down
                        os.write(tap, frame)
